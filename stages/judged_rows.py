"""Calls our reward functions with sampled rows: a truth that they cannot read, or that no answer can match, is found.

source: in the format of pipeline/check/samples.py; its `rewards` are those of pipeline/check/builtin_rewards.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

from operators.reward import countdown_reward, unmatched
from pipeline.check.data_sample import Sample
from pipeline.settings.arguments.judging import rubric_of
from pipeline.store.errors import DataError
from pipeline.store.records import RawTask

SHOWN = 60  # characters of a prompt and of a truth


def unjudgeable(source: dict[str, Any], drawn: Sample, rows: Sequence[RawTask]) -> tuple[list[str], list[str]]:
    """(warnings, problems): a line for each function that cannot judge some of the rows. It is a warning where the
    workflow may reward its attempts itself. rows: those of the sample, as they are read."""
    warnings, problems = [], []
    for reward in source.get("rewards", ()):
        judged = [(at, row) for at, row in enumerate(rows)
                  if row.problem is None and row.question and row.answer is not None]
        found = [(at, row, why) for at, row in judged if (why := _why_not(reward, row.answer))]
        if found:
            _, row, why = min(found, key=lambda one: drawn.places[one[0]])
            rewarder = reward["optional"]
            to = warnings if rewarder else problems
            unless = f" Nothing is wrong where {rewarder} returns every reward itself." if rewarder else ""
            to.append(
                f"{source['key']}: {reward['name']} ({reward['key']}) can reward no answer to {len(found)} of "
                f"{len(judged)} sampled rows ({drawn.named(at for at, _, _ in found)}). The first, whose prompt ends "
                f"with {row.question[-SHOWN:]!r} and whose truth is {row.answer[:SHOWN]!r}: {why}. Correct or leave "
                f"out such rows, take the truth from another column ({source['format_key']}.response_key), or name a "
                f"function that reads it.{unless}")
    return warnings, problems


def _why_not(reward: dict[str, Any], truth: str) -> str | None:
    """Why a function cannot judge answers to a row with this truth, or None."""
    try:
        return TRIED[reward["name"]](truth, reward["arguments"])
    except (DataError, ValueError) as error:
        return str(error).rstrip(".")


def _accuracy(truth: str, arguments: dict[str, Any]) -> str | None:
    return unmatched(truth)


def _countdown(truth: str, arguments: dict[str, Any]) -> None:
    countdown_reward("", truth)


def _judge(truth: str, arguments: dict[str, Any]) -> None:
    if arguments.get("rubric") is None and not arguments.get("compare"):
        try:
            rubric_of(truth)
        except ValueError as error:
            raise DataError(f"without the argument rubric each truth is one: {error}") from error


TRIED: dict[str, Callable[[str, dict[str, Any]], str | None]] = {
    "accuracy_reward": _accuracy, "countdown_reward": _countdown, "judge_reward": _judge}
