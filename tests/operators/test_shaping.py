"""Rewards after the fact, by hand."""

import pytest

from operators.shaping import overlong_penalty, shape_reward
from pipeline.errors import ConfigError, DataError


@pytest.mark.parametrize(("length", "penalty"), [(0, 0), (80, 0), (85, -0.25), (90, -0.5), (100, -1), (150, -1)])
def test_the_last_tokens_cost(length, penalty):
    """At most 100 tokens, the last 20 of them dearer and dearer."""
    assert overlong_penalty(length, 100, 20) == pytest.approx(penalty)
    assert overlong_penalty(length, 100, 20, penalty_factor=0.5) == pytest.approx(penalty / 2)


@pytest.mark.parametrize("cache", [0, 100, 150, -1])
def test_a_cache_that_is_not_within_the_response_is_refused(cache):
    with pytest.raises(ConfigError, match=rf"cache_length={cache}: needed between 0 and max_response_length=100"):
        overlong_penalty(5, 100, cache)


def test_changes_come_one_after_the_other():
    """((2 + 0.5 * 4) * 3 - 1) / 2 = 5.5"""
    changes = [{"stats_key": "a", "weight": 0.5}, {"stats_key": "b", "op_type": "MUL"},
               {"stats_key": "c", "op_type": "SUB"}, {"stats_key": "a", "op_type": "DIV", "weight": 0.5}]
    assert shape_reward(2.0, {"a": 4, "b": 3, "c": 1}, changes) == 5.5
    assert shape_reward(2.0, {}, []) == 2.0


@pytest.mark.parametrize(("change", "error", "words"), [
    ({"stats_key": "lenght"}, DataError, "has no 'lenght'. Did you mean 'length'"),
    ({"stats_key": "empty"}, DataError, "has no 'empty'"),
    ({"stats_key": "zero", "op_type": "DIV"}, DataError, "'zero' is 0, and the reward is to be divided by it"),
    ({"stats_key": "length", "op_type": "POW"}, ConfigError, "unknown op_type of reward shaping 'POW'.*Known: ADD"),
    ({"op_type": "ADD"}, ConfigError, "needed stats_key"),
    ({"stats_key": "length", "wieght": 2}, ConfigError, "needed stats_key, and perhaps op_type and weight"),
])
def test_a_change_that_cannot_be_made_is_refused(change, error, words):
    with pytest.raises(error, match=words):
        shape_reward(1.0, {"length": 3, "zero": 0, "empty": None}, [change])
