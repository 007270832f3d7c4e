"""Advantages, by SQL on a table that was worked out by hand."""

import duckdb
import pytest

from operators.advantage import ADVANTAGES, grpo, reinforce
from operators.arguments import arguments
from pipeline.errors import ConfigError

# id -> (group, reward)
BATCH = {
    "a0": ("a", 1.0), "a1": ("a", 0.0), "a2": ("a", 0.0), "a3": ("a", 1.0),
    "b0": ("b", 3.0),  # a group of one: the others failed
    "c0": ("c", 0.1), "c1": ("c", 0.1), "c2": ("c", 0.1),
    "d0": ("d", 0.0), "d1": ("d", 1.0), "d2": ("d", 2.0),
}


def ask(query: str) -> dict[str, float]:
    session = duckdb.connect()
    session.execute("CREATE TABLE batch (experience_id VARCHAR, group_id VARCHAR, reward DOUBLE)")
    session.executemany("INSERT INTO batch VALUES (?, ?, ?)", [(i, g, r) for i, (g, r) in BATCH.items()])
    return dict(session.execute(query).fetchall())


def test_grpo_compares_within_the_group():
    """a: mean 1/2, std = sqrt(4 (1/2)^2 / 3) = 0.577350, so +-0.866025.  d: mean 1, std 1, so -1, 0, 1."""
    found = ask(grpo())
    root = 0.8660254
    expected = {"a0": root, "a1": -root, "a2": -root, "a3": root, "d0": -1.0, "d1": 0.0, "d2": 1.0}
    assert {i: found[i] for i in expected} == pytest.approx(expected, abs=3e-6)  # epsilon 1e-6 shortens them


def test_a_group_of_one_and_equal_rewards_teach_nothing():
    found = ask(grpo())
    assert [found[i] for i in ("b0", "c0", "c1", "c2")] == pytest.approx([0.0] * 4, abs=1e-9)


def test_every_row_has_one_advantage_and_a_group_sums_to_zero():
    found = ask(grpo())
    assert found.keys() == BATCH.keys()
    for group in "abcd":
        assert sum(a for i, a in found.items() if i[0] == group) == pytest.approx(0.0, abs=1e-9)


def test_epsilon_damps():
    """d with epsilon 1: (r - 1) / (1 + 1)."""
    assert [ask(grpo(epsilon=1))[i] for i in ("d0", "d1", "d2")] == pytest.approx([-0.5, 0.0, 0.5])


@pytest.mark.parametrize("epsilon", [0, 0.0, -1e-6, float("nan"), float("inf"), "1e-6"])
def test_an_epsilon_that_could_divide_by_zero_is_refused(epsilon):
    with pytest.raises(ConfigError, match=r"advantage_fn_args\.epsilon"):
        grpo(epsilon=epsilon)


def test_reinforce_is_the_reward():
    assert ask(reinforce()) == {i: r for i, (_, r) in BATCH.items()}


def test_every_function_of_the_table_answers_with_its_defaults():
    for function in ADVANTAGES.values():
        assert ask(function(**arguments(function, {}, "x"))).keys() == BATCH.keys()


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
