"""Baselines of roles: running means, by hand."""

import pyarrow as pa
import pytest

from ouroboros.operators.algorithm import Algorithm
from tests.configs import TINY, overridden


def batch(*rows):
    """rows: (position, role, turn, reward, is_candidate, use_count)."""
    names = ("position", "role", "turn", "reward", "is_candidate", "use_count")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    groups = [f"g/{role}" for role in columns["role"]]
    return pa.table({"experience_id": [f"e{i}" for i in range(len(rows))], "taskset": ["kuhn"] * len(rows),
                     "group_id": groups, **columns})


def found(table, state):
    """By the algorithm, which hands the advantage its state; decay 1/2."""
    words = "algorithm.advantage_fn=rae", "algorithm.advantage_fn_args={decay: 0.5}"
    algorithm = Algorithm.of(overridden(*TINY, *words), state)
    made = algorithm.advantages(table)["advantage"].to_pylist()
    state.update(algorithm.state)
    return made


def test_each_role_has_its_running_mean_which_the_next_batch_goes_on_from():
    """decay 1/2: b of the first 1, 0.25, of the second -1, 0.25: A = r - b after the update. The third row is a later
    turn of the first player in the first attempt, which counts once with the reward of its last row."""
    state: dict = {}
    rows = [(0, "first", 0, 2.0, True, 0), (0, "second", 1, -2.0, True, 0), (0, "first", 2, 2.0, True, 0),
            (1, "first", 0, -0.5, True, 0), (1, "second", 1, 1.5, True, 0)]
    assert found(batch(*rows), state) == [1.0, -1.0, 1.0, -0.75, 1.25]
    assert state == {"rae/kuhn/first": 0.25, "rae/kuhn/second": 0.25}
    assert found(batch((2, "second", 0, 1.25, True, 0)), state) == [0.5]
    assert state == {"rae/kuhn/first": 0.25, "rae/kuhn/second": 0.75}


@pytest.mark.parametrize(("is_candidate", "uses"), [(False, 0), (True, 1)])
def test_rows_of_another_batch_and_replayed_ones_leave_the_baseline(is_candidate, uses):
    state = {"rae/kuhn/": 1.0}
    assert found(batch((0, "", 0, 4.0, is_candidate, uses)), state) == [3.0]
    assert state == {"rae/kuhn/": 1.0}
