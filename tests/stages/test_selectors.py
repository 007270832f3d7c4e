"""Estimates of solve rates and weighted draws, with numbers worked out by hand."""

from collections import Counter

import numpy as np
import pytest

from ouroboros.operators.features import featured, noting
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.records import RawTask
from ouroboros.stages.explorer.selectors import DifficultyBased, SolveRatePools, by_features, gumbel_order

GIVEN = {"m": 10, "lamb": 0.2, "rho": 0.5, "adaptive_rho": False, "do_sample": False, "target_reward": 0.85, "tau": 0.0}
FEATURES = np.array([[0.0, 1.0], [0.5, 1.0], [0.2, 0.6]])


def test_easy_tasks_come_first_and_equal_ones_keep_their_order():
    assert by_features(np.array([[0.2], [0.9], [0.9], [0.5]])).tolist() == [1, 2, 3, 0]
    assert by_features(np.array([[0.9, 0.1], [0.9, 0.3], [1.0, 0.0]])).tolist() == [2, 1, 0]


def test_rates_are_estimated_from_measured_ones_and_from_two_models():
    """Measured: 0.5 and 1 of the first two tasks, whose features have means 0.25 and 1: c = 0.5 / 0.75 = 2/3. The third
    is expected at 0.2 + 2/3 x 0.4 = 7/15. Then it is measured at 1: c = 0.9 x 2/3 + 0.1 x 0.8/0.4 = 0.8."""
    made = DifficultyBased(FEATURES, 1, **GIVEN)
    made.measure({0: 0.5, 1: 1.0})
    assert made.c == pytest.approx(2 / 3, abs=1e-5)
    assert made.alpha == pytest.approx([6, 11, 10 / 3], abs=1e-4)
    assert made.beta == pytest.approx([6, 1, 11 / 3], abs=1e-4)
    assert made.rates() == pytest.approx([0.5, 11 / 12, 10 / 21], abs=1e-5)
    made.measure({2: 1.0})
    assert made.c == pytest.approx(0.8, abs=1e-5)
    assert made.rates() == pytest.approx([0.6, 0.9, 12.866667 / 16], abs=1e-5)
    assert made.order(3).tolist() == [2, 1, 0]  # 0.046, 0.05 and 0.25 from 0.85
    assert made.why(1)[:2] == pytest.approx((0.9, -0.05), abs=1e-5)


def test_interpolation_that_is_far_off_counts_half():
    """It expects 2/3 and 5/6 of what is 1/2 and 1: 1/6 off, which is near. Then 0.52 of what is 1: 0.48 off."""
    made = DifficultyBased(FEATURES, 1, **GIVEN | {"adaptive_rho": True})
    made.measure({0: 0.5, 1: 1.0})
    assert made.rho == 0.5
    made.measure({2: 1.0})
    assert made.rho == 0.25


def test_a_draw_is_a_function_of_seed_and_step():
    given = GIVEN | {"tau": 1.0, "do_sample": True}
    first, other = (DifficultyBased(FEATURES, seed, **given) for seed in (1, 2))
    orders = [[one.order(step).tolist() for step in range(20)] for one in (first, first, other)]
    assert orders[0] == orders[1] != orders[2]
    assert {len(set(order)) for order in orders[0]} == {3}


def test_tasks_come_first_as_often_as_their_weights_say():
    """Weights 1, 0.3, 1 and 0.1 of 2.4: 1667, 500, 1667 and 167 of 4000 draws, give or take four sigma."""
    weights = np.log([1.0, 0.3, 1.0, 0.1])
    first = Counter(int(gumbel_order(weights, 7, step)[0]) for step in range(4000))
    for task, wanted in enumerate((1667, 500, 1667, 167)):
        assert abs(first[task] - wanted) < 4 * (wanted * (1 - wanted / 4000)) ** 0.5


def test_pools_follow_the_last_measured_rate():
    made = SolveRatePools(5, 1, 0.1, 0.9, unseen_weight=0.0, hard_weight=0.0, medium_weight=1.0, solved_weight=0.0)
    made.measure({0: 0.0, 1: 0.5, 2: 1.0, 4: 0.9})
    assert made.pools().tolist() == [1, 2, 3, 0, 3]
    assert made.order(9)[0] == 1  # weight 0 comes last, and in another order each step
    assert {tuple(made.order(step)[1:].tolist()) for step in range(40)} > {(0, 2, 3, 4)}
    assert [made.why(task) for task in (1, 3)] == [(0.5, 1.0, "medium"), (None, 0.0, "unseen")]
    made.measure({1: 0.95, 2: 0.25})
    assert made.pools().tolist() == [1, 3, 2, 0, 3]


def test_features_are_numbers_of_a_record_and_a_row_without_one_cannot_be_used():
    records = [{"extra": {"rate": 1}}, {"extra": {"rate": "0.5"}}, {"extra": {}}, {"extra": {"rate": float("nan")}}]
    noted = []
    assert [*noting(records, ["extra.rate"], noted)] == records
    rows = [featured(RawTask(i, "q", "a", None), found) for i, found in enumerate(noted)]
    assert rows[0].features == [("extra.rate", 1.0)]
    assert [row.problem is None for row in rows] == [True, False, False, False]
    with pytest.raises(DataError) as error:
        [*noting(records, ["extra.rates"], [])]
    assert "extra.rates" in str(error.value)
