"""Curves of steps that did not go well. (The pictures of a whole page: tests/stages/test_report.py.)"""

import re

import numpy as np
import pytest

from ouroboros.pipeline.results import charts
from tests.golden.messages import wording


def label(svg: str) -> str:
    return re.search(r'aria-label="([^"]*)"', svg).group(1)


@pytest.mark.parametrize("values", [[np.inf, np.inf], [np.nan, -np.inf], [np.nan], []])
def test_a_column_without_a_finite_value_is_an_empty_picture_that_says_so(values):
    svg = charts.curve("c", "gradient norm", np.arange(1, len(values) + 1), np.array(values))
    assert "no finite value" in label(svg)
    assert ">no finite value<" in svg


def test_what_is_finite_is_drawn():
    svg = charts.curve("c", "gradient norm", np.arange(1, 5), np.array([2.0, 2.0, np.inf, np.nan]))
    wording(label(svg), "2 at", "step 2 (smoothed)")
