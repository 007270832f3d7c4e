"""docs/algorithms.md says what the code says, and its examples come out as it says."""

import math
from pathlib import Path

import numpy as np
import pytest

from operators.catalogue import FAMILIES, page

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()


def test_the_page_is_up_to_date():
    """Otherwise: everything from the heading on is to be what `python -m operators.catalogue` prints."""
    begin = PAGE.index("## Algorithms by type")
    assert PAGE[begin:] == page()


@pytest.mark.parametrize("title", FAMILIES)
def test_every_part_says_what_it_is(title):
    assert all(len(function.__doc__) > 10 for function in FAMILIES[title].values())


def test_the_averages_of_the_page():
    from operators.aggregation import token_weights

    losses = np.array([1.0, 1, 1, 5])
    assert np.dot(np.repeat(token_weights("token-mean", [3, 1]), [3, 1]), losses) == 2
    assert token_weights("seq-mean-token-sum-norm", [4, 4, 4], 4).sum() * 4 == pytest.approx(1)
    assert (-math.log(1 / (1 + math.exp(-0.1)))) == pytest.approx(0.644, abs=5e-4)
