"""Growth over a long run, by numbers worked out: 2 in 100 steps, of 112 or 114 in the middle."""

import pytest

from benchmarks.soak import growth


@pytest.mark.parametrize(("values", "grown"), [
    ([100 + step / 50 for step in range(0, 1001, 100)], 2 / 112),
    ([900, 102, 104, 106, 108, 110, 500, 114, 116, 118, 120], 2 / 114),  # while caches fill, and one peak
    ([5] * 11, 0), ([0] * 11, 0)])
def test_growth_per_hundred_steps_is_a_robust_slope(values, grown):
    assert growth([*range(0, 1001, 100)], values) == pytest.approx(grown)
