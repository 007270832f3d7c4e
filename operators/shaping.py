"""Changes of a reward after it was given: a penalty on length, and arithmetic with other numbers of the row."""

from collections.abc import Mapping, Sequence

from operators.arguments import check_number
from pipeline.errors import ConfigError, DataError, nearest, pick


def overlong_penalty(length: int, max_response_length: int, cache_length: int, penalty_factor: float = 1.0) -> float:
    """The soft overlong punishment of DAPO (Yu et al. 2025, arXiv:2503.14476), to be added to the reward.

    0 up to M - c tokens, then linear to -penalty_factor at M, and that beyond; M = max_response_length, c =
    cache_length, 0 < c < M. A response that was cut at M is punished in full.
    """
    if not 0 < cache_length < max_response_length:
        raise ConfigError(f"cache_length={cache_length}: needed between 0 and max_response_length="
                          f"{max_response_length}, both excluded.")
    check_number("penalty_factor", penalty_factor, least=0)
    over = (length - (max_response_length - cache_length)) / cache_length
    return -penalty_factor * min(max(over, 0.0), 1.0)


def shape_reward(reward: float, row: Mapping[str, float], changes: Sequence[Mapping]) -> float:
    """The reward after each change in turn: {stats_key, op_type ADD, SUB, MUL or DIV, weight 1.0}.

    ADD: reward + weight x, x the row's number under stats_key; SUB, MUL, DIV likewise. Raises DataError where the row
    has no such number and where it would divide by 0: a change that is left out silently is a different reward.
    """
    for change in changes:
        unknown = set(change) - {"stats_key", "op_type", "weight"}
        if unknown or "stats_key" not in change:
            raise ConfigError(f"reward shaping {dict(change)}: needed stats_key, and perhaps op_type and weight.")
        key, operation = change["stats_key"], change.get("op_type", "ADD")
        if row.get(key) is None:
            raise DataError(f"reward shaping: the row has no '{key}'.{nearest(key, row)} It has: {', '.join(row)}.")
        value = change.get("weight", 1.0) * row[key]
        if operation == "DIV" and value == 0:
            raise DataError(f"reward shaping: '{key}' is {row[key]}, and the reward is to be divided by it.")
        reward = pick(OPERATIONS, operation, "op_type of reward shaping")(reward, value)
    return reward


OPERATIONS = {
    "ADD": lambda reward, value: reward + value,
    "DIV": lambda reward, value: reward / value,
    "MUL": lambda reward, value: reward * value,
    "SUB": lambda reward, value: reward - value,
}
