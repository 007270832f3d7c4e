"""docs/algorithms.md says what the code says, and its examples come out as it says."""

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.catalogue import FAMILIES, page

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()


def test_the_page_is_up_to_date():
    """Otherwise: everything from the heading on is to be what `python -m benchmarks.catalogue` prints."""
    begin = PAGE.index("## Algorithms by type")
    assert PAGE[begin:] == page()


@pytest.mark.parametrize(("title", "name"), [(title, name) for title in FAMILIES for name in FAMILIES[title]])
def test_every_part_says_where_it_is_from_and_what_it_assumes(title, name):
    told = FAMILIES[title][name].__doc__
    assert re.search(r"arXiv:\d{4}\.\d{5}|\b(19|20)\d\d\b|no paper", told)
    assert re.search("[Aa]ssum", told)


def test_the_averages_of_the_page():
    from ouroboros.operators.aggregation import token_weights

    losses = np.array([1.0, 1, 1, 5])
    assert np.dot(np.repeat(token_weights("token-mean", [3, 1]), [3, 1]), losses) == 2
    assert token_weights("seq-mean-token-sum-norm", [4, 4, 4], 4).sum() * 4 == pytest.approx(1)
