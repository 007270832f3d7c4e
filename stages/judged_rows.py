"""Calls our reward functions with sampled rows: a truth that they cannot read, or that no answer can match, is found,
and a reply that answers nothing and earns what an answer earns.

source: in the format of pipeline/check/samples.py.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ouroboros.operators.reward import REWARDS, calls_reward, countdown_reward, evals_reward, unmatched
from ouroboros.pipeline.check.reading import Sample
from ouroboros.pipeline.settings.arguments.judging import rubric_of
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.records import RawTask
from ouroboros.workflows.attempts.user_reward import taken_arguments
from ouroboros.workflows.protocol.prompts import asked_turns

SHOWN = 60  # characters of a prompt and of a truth
REPEATED = 40  # rows for which a function is called with replies that answer nothing
OFTEN = 0.05  # share of them beyond which such a reply may earn nothing


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
        elif not reward["optional"] and (function := REWARDS.get(reward["name"])):
            arguments = taken_arguments(function, reward["arguments"])
            tried = [(row, [1.0, *(function(reply, row.answer, **arguments)["accuracy"] for reply in replies(row))])
                     for _, row in judged[:REPEATED]]
            warnings += [f"{source['key']}: {reward['name']} ({reward['key']}) {words}" for words in unearned(tried)]
    return warnings, problems


def replies(row: RawTask) -> list[str]:
    """Replies that answer nothing: the question, its last line, an empty one, all messages of the prompt."""
    prompt = "\n".join(str(turn.get("content") or "") for turn in asked_turns(row, None))
    return [row.question, row.question.strip().rpartition("\n")[2], "", prompt]


def unearned(tried: Sequence[tuple[RawTask, list[float | None]]]) -> list[str]:
    """A sentence where one of `replies` earns too often what the truth earns. tried: rows, each with the rewards of its
    truth, or demonstration, and of these replies; None: no reward. A reply that is a letter to choose may earn as often
    as the commonest letter."""
    paid = {what: [row for row, (truth, *found) in tried if 0 < (truth or 0) <= (found[at] or 0)]
            for at, what in enumerate(("its question", "the last line of its prompt", "an empty reply",
                                       "its whole prompt"))}
    what, rows = max(paid.items(), key=lambda one: len(one[1]))
    letters = Counter(row.answer for row, _ in tried if re.fullmatch(r"\(?[A-Za-z]\)?", row.answer))
    return [] if len(rows) <= max([OFTEN * len(tried), *letters.values()]) else [
        f"gives {what}, as the response, what it gives the truth in {len(rows)} of {len(tried)} rows: a policy learns "
        f"to write that. The first ends with {rows[0].question[-SHOWN:]!r}, and its truth is "
        f"{rows[0].answer[:SHOWN]!r}. Leave out such rows, or name a function that compares a final answer."]


def _why_not(reward: dict[str, Any], truth: str) -> str | None:
    """Why a function cannot judge answers to a row with this truth, or None."""
    try:
        found = TRIED[reward["name"]](truth, reward["arguments"])
        return found if isinstance(found, str) else None
    except (DataError, ValueError) as error:
        return str(error).rstrip(".")


def _judge(truth: str, arguments: dict[str, Any]) -> None:
    if arguments.get("rubric") is None and not arguments.get("compare"):
        try:
            rubric_of(truth)
        except ValueError as error:
            raise DataError(f"without the argument rubric each truth is one: {error}") from error


TRIED: dict[str, Callable[[str, dict[str, Any]], object]] = {  # -> why not, as a text, where it does not raise it
    "accuracy_reward": lambda truth, _: unmatched(truth), "judge_reward": _judge,
    "countdown_reward": lambda truth, _: countdown_reward("", truth),
    "evals_reward": lambda truth, _: evals_reward("", truth),
    "calls_reward": lambda truth, _: calls_reward("[]", truth)}
