"""Advantages of whole responses, on a table that was worked out by hand."""

import functools

import pyarrow as pa
import pytest

from operators.advantage import ADVANTAGES
from operators.advantages.group import grpo, reinforce
from operators.arguments import arguments, needed_columns
from pipeline.errors import ConfigError, DataError

# id -> (group, reward)
BATCH = {
    "a0": ("a", 1.0), "a1": ("a", 0.0), "a2": ("a", 0.0), "a3": ("a", 1.0),
    "b0": ("b", 3.0),  # a group of one: the others failed
    "c0": ("c", 0.1), "c1": ("c", 0.1), "c2": ("c", 0.1),
    "d0": ("d", 0.0), "d1": ("d", 1.0), "d2": ("d", 2.0),
}


def table(rows: dict[str, tuple[str, float]]) -> pa.Table:
    return pa.table({"experience_id": list(rows), "group_id": [g for g, _ in rows.values()],
                     "reward": pa.array([r for _, r in rows.values()], pa.float64())})


def answer(function, rows=BATCH, **given) -> dict[str, float]:
    made = function(table(rows), **given)
    return dict(zip(made["experience_id"].to_pylist(), made["advantage"].to_pylist(), strict=True))


def test_grpo_compares_within_the_group():
    """a: mean 1/2, std = sqrt(4 (1/2)^2 / 3) = 0.577350, so +-0.866025.  d: mean 1, std 1, so -1, 0, 1."""
    found = answer(grpo)
    root = 0.8660254
    expected = {"a0": root, "a1": -root, "a2": -root, "a3": root, "d0": -1.0, "d1": 0.0, "d2": 1.0}
    assert {i: found[i] for i in expected} == pytest.approx(expected, abs=3e-6)  # epsilon 1e-6 shortens them


def test_a_group_of_one_and_equal_rewards_teach_nothing():
    found = answer(grpo)
    assert [found[i] for i in ("b0", "c0", "c1", "c2")] == [0.0] * 4  # exactly: 0.1 + 0.1 + 0.1 is not 0.3


def test_every_row_has_one_advantage_and_a_group_sums_to_zero():
    found = answer(grpo)
    assert found.keys() == BATCH.keys()
    for group in "abcd":
        assert sum(a for i, a in found.items() if i[0] == group) == pytest.approx(0.0, abs=1e-9)


def test_epsilon_damps():
    """d with epsilon 1: (r - 1) / (1 + 1)."""
    found = answer(grpo, epsilon=1)
    assert [found[i] for i in ("d0", "d1", "d2")] == pytest.approx([-0.5, 0.0, 0.5])


@pytest.mark.parametrize("epsilon", [0, 0.0, -1e-6, float("nan"), float("inf"), "1e-6"])
def test_an_epsilon_that_could_divide_by_zero_is_refused(epsilon):
    with pytest.raises(ConfigError, match=r"advantage_fn_args\.epsilon"):
        answer(grpo, epsilon=epsilon)


def test_reinforce_is_the_reward():
    assert answer(reinforce) == {i: r for i, (_, r) in BATCH.items()}


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_refused_with_its_row(reward):
    with pytest.raises(DataError, match=r"'reward' is (nan|inf) in row d1, .*must have a status that is not ok"):
        answer(grpo, BATCH | {"d1": ("d", reward)})


def test_a_column_that_is_absent_or_null_is_named_with_the_stage_that_makes_it():
    with pytest.raises(DataError, match="'group_id', which this batch does not have; it is made by the explorer"):
        grpo(table(BATCH).drop_columns("group_id"))
    with pytest.raises(DataError, match="'reward', which is null in 1 of 11 rows"):
        answer(grpo, BATCH | {"d1": ("d", None)})


def test_every_function_of_the_table_answers_with_its_defaults_even_for_no_rows():
    for function in ADVANTAGES.values():
        assert answer(function, **arguments(function, {}, "x")).keys() == BATCH.keys()
        assert answer(function, {}) == {}


# -------------------------------------------------------------------------------------------------------- arguments


def function(first, second=2, third="x"):
    """Has two arguments with defaults."""


def test_given_arguments_go_over_the_defaults_key_by_key():
    assert arguments(function, {"third": "y"}, "key") == {"second": 2, "third": "y"}


@pytest.mark.parametrize("name", ["secnd", "first"])  # first has no default: it is not the user's to give
def test_an_unknown_argument_is_answered_with_those_there_are(name):
    with pytest.raises(ConfigError, match=rf"some\.key: 'function' has no argument '{name}'.*It has: second, third"):
        arguments(function, {name: 1}, "some.key")


def test_a_function_without_arguments_says_so():
    with pytest.raises(ConfigError, match="It has: none"):
        arguments(reinforce, {"epsilon": 1}, "algorithm.advantage_fn_args")


def test_the_columns_that_a_function_needs_are_its_parameters_without_a_default():
    assert needed_columns(function) == ("first",)
    assert needed_columns(functools.partial(function, third="y")) == ("first",)
