"""Operators on the attempts of one explorer step: they drop, score and reward them anew before advantages.

An operator is one of OPERATORS, Data-Juicer's, or the user's `package.module:function`, a function of the step's rows
that changes them in place:

    def brief(rows, most=200):
        for row in rows:
            row["scores"]["length"] = len(row["response"])
            if len(row["response"]) > most:
                row["reason"] = f"longer than {most} characters"

A row is an attempt, by its last turn: prompt and response (also as prompt_text and response_text), answer, taskset,
task_id, group_id, run_index, reward, accuracy, components of the reward by name, finish_reason and number of tokens. A
`reason` drops it; `reward` and `scores` (name to number) may be changed. Rows dropped by one operator are unseen by the
next. A group of one is dropped in the end where groups are larger: it has nothing to be compared with.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ouroboros.operators import juicer
from ouroboros.operators.arguments import arguments
from ouroboros.operators.curation import META, STATS, Dropped, Row
from ouroboros.operators.experience_rewards import diversity_reward, quality_reward
from ouroboros.operators.juicer_recipes import inline_recipe, items, read_recipe
from ouroboros.pipeline.settings.arguments.experience import (
    DATA_JUICER,
    EXPERIENCE,
    SHAPING,
    UNFIT,
    DataJuicer,
    Shaping,
)
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.user_calls import calling
from ouroboros.pipeline.store.user_errors import brief, load_dotted

KEY = "data_processor.experience_pipeline.operators"
CALLS = DataJuicer().num_process
TEXT = "response"  # what operators of Data-Juicer look at where they name no column
CHANGED = {"reward": object, "scores": dict, "reason": str | None}  # what an operator of the user may change -> types
ALONE = "group"  # named as the operator that drops what is left alone

Outcome = tuple[list[Row], list[Dropped]]
Operator = Callable[[list[Row]], Outcome]


@dataclass(frozen=True)
class Verdict:
    """What becomes of a row. operator, reason: of the operator that dropped it, None where it is kept."""

    reward: float
    scores: dict[str, float]
    operator: str | None = None
    reason: str | None = None


def prepare(operators: Sequence[dict[str, Any]], resolve: Callable[[str], Path] = Path) -> list[Operator]:
    """The functions of the configured operators, in order. resolve: of the path of a recipe.

    Raises ConfigError for an unknown operator or argument.
    """
    return [made for one in operators for made in _prepared(one["name"], one.get("args") or {}, resolve)]


def _prepared(name: str, given: dict[str, Any], resolve: Callable[[str], Path]) -> list[Operator]:
    if ":" in name:
        function = load_dotted(name)
        return [partial(_users, name, partial(function, **arguments("operators", name, function, given, KEY)))]
    if name not in EXPERIENCE:
        recipe = inline_recipe([{"name": name, "args": given}], [])
    elif name == DATA_JUICER:
        path = given.get("config_path")
        recipe = read_recipe(resolve(path)) if path else inline_recipe(given["operators"], [])
    else:
        return [partial(OPERATORS[name], **dict(EXPERIENCE[name].bind(name, given, KEY)))]
    calls = EXPERIENCE[DATA_JUICER].bind(name, given, KEY).num_process if name == DATA_JUICER else CALLS
    return [partial(juicer.run, operator, calls=calls) for operator in juicer.build(recipe, TEXT)]


def misfits(recipe: dict[str, Any]) -> list[str]:
    """Faults in a Data-Juicer recipe for experience, one line each, without running any operator."""
    return [f"operator '{name}': {UNFIT[name]}" for name, _ in items(recipe) if name in UNFIT] or (
        juicer.faults(recipe, TEXT))


def curate(rows: Sequence[Row], operators: Sequence[Operator], compared: bool) -> dict[int, Verdict]:
    """The verdict on each row, by its number `row`. compared: groups have several attempts, so one alone is dropped.

    Raises DataError for a reward or a score that is no finite number.
    """
    kept: list[Row] = [{**row, STATS: {}, META: {}} for row in rows]
    dropped: list[Dropped] = []
    for operator in operators:
        kept, gone = operator(kept)
        dropped += gone
    if compared:
        kept, gone = _alone(kept)
        dropped += gone
    rewards = {row["row"]: row["reward"] for row in rows}
    verdicts = {row["row"]: Verdict(_finite("reward", row["reward"]), _numbers(scores_of(row))) for row in kept}
    return verdicts | {one.row: Verdict(rewards[one.row], _numbers(one.scores), one.operator, one.reason)
                       for one in dropped}


def passed(rows: Sequence[Row], operators: Sequence[Operator]) -> list[Row]:
    """Made rows after each operator, for a check: one that would be dropped goes on too, as other rows may.

    Raises what a step would end with.
    """
    kept: list[Row] = [{**row, STATS: {}, META: {}} for row in rows]
    for operator in operators:
        left, gone = operator(kept)
        if gone and gone[0].operator == SHAPING and not left:
            raise DataError(f"{SHAPING} drops every attempt: {gone[0].reason}.")
        scores = {one.row: one.scores for one in gone}
        kept = left + [row | {STATS: row[STATS] | scores[row["row"]]} for row in kept if row["row"] in scores]
    return kept


def scores_of(row: Row) -> dict[str, Any]:
    """What operators have found of a row, by name."""
    return {**row[META], **row[STATS]}


def _numbers(found: dict[str, Any]) -> dict[str, float]:
    """The numbers among what operators found, as one: texts and lists are their own affair."""
    return {name: _finite(name, value) for name, value in found.items() if isinstance(value, int | float | np.number)}


def _finite(name: str, value: Any) -> float:
    if not isinstance(value, int | float | np.number) or not math.isfinite(value):
        raise DataError(f"{KEY}: they gave a row the {name} {value!r}; needed a finite number.")
    return float(value)


def _alone(rows: list[Row]) -> Outcome:
    """Drops what is left alone in its group."""
    sizes = Counter(row["group_id"] for row in rows)
    return _parted(ALONE, rows, lambda row: "the only attempt of its group that is left"
                   if sizes[row["group_id"]] == 1 else None)


def _parted(operator: str, rows: list[Row], why: Callable[[Row], str | None]) -> Outcome:
    """Keeps the rows for which there is no reason against it."""
    judged = [(row, why(row)) for row in rows]
    return ([row for row, reason in judged if reason is None],
            [Dropped(row["row"], operator, reason, scores_of(row)) for row, reason in judged if reason is not None])


def _users(name: str, function: Callable, rows: list[Row]) -> Outcome:
    """Calls an operator of the user with copies of the rows; raises DataError for what it may not do."""
    given = [{k: v for k, v in row.items() if k not in (STATS, META)} | {"scores": scores_of(row), "reason": None}
             for row in rows]
    shown, before = list(given), deepcopy(given)
    try:
        with calling(name):
            found = function(shown)
    except (Exception, SystemExit) as error:
        raise DataError(f"operator '{name}' failed: {brief(error)}.") from error
    did = (f"returned a {type(found).__name__}" if found is not None else
           "changed the list of rows" if sorted(map(id, shown)) != sorted(map(id, given)) else
           next(filter(None, map(_mistaken, before, given)), None))
    if did:
        raise DataError(f"operator '{name}' {did}; it changes {', '.join(CHANGED)} of the rows that it is given, and "
                        "a row with a reason is dropped: needed these rows, and None as the result.")
    changed = [row | {"reward": _finite(f"reward (by {name})", one["reward"]), META: {},
                      STATS: dict(one["scores"])} for row, one in zip(rows, given, strict=True)]
    reasons = {row["row"]: one["reason"] for row, one in zip(rows, given, strict=True)}
    return _parted(name, changed, lambda row: None if reasons[row["row"]] is None else str(reasons[row["row"]]))


def _mistaken(before: Row, row: Row) -> str | None:
    """What an operator of the user did to a row that nothing would read."""
    for name in {**before, **row}:
        if name not in row or name not in before:
            return f"{'added' if name in row else 'deleted'} '{name}'"
        if not (isinstance(row[name], CHANGED[name]) if name in CHANGED else row[name] == before[name]):
            return f"set {name}={row[name]!r}"
    return None


# ----------------------------------------------------------------------------------------------------------- operators


def reward_filter(rows: list[Row], threshold: float) -> Outcome:
    """Keeps attempts whose reward is at least the threshold."""
    return _parted("reward_filter", rows, lambda row: None if row["reward"] >= threshold else
                   f"reward={row['reward']:g}, kept {threshold:g}..")


def reward_std_filter(rows: list[Row], threshold: float) -> Outcome:
    """Keeps groups of at least two attempts whose rewards' population std is above the threshold."""
    rewards = _by_group(rows)
    spreads = {group: float(np.std(found)) if len(found) > 1 and min(found) < max(found) else 0.0
               for group, found in rewards.items()}
    return _parted("reward_std_filter", rows, lambda row: None
                   if len(rewards[row["group_id"]]) > 1 and spreads[row["group_id"]] > threshold else
                   f"std={spreads[row['group_id']]:g} of {len(rewards[row['group_id']])} rewards, kept above "
                   f"{threshold:g}")


def pass_rate_calculator(rows: list[Row]) -> Outcome:
    """Gives each attempt the score pass_rate, the mean reward of its group."""
    means = {group: float(np.mean(found)) for group, found in _by_group(rows).items()}
    return [row | {STATS: row[STATS] | {"pass_rate": means[row["group_id"]]}} for row in rows], []


def invalid_reward_filter(rows: list[Row]) -> Outcome:
    """Keeps all: an attempt without a finite reward failed, and is not among them."""
    return rows, []


def reward_shaping_mapper(rows: list[Row], reward_shaping_configs: list[dict[str, Any]]) -> Outcome:
    """Changes the reward by scores, one configuration after the other.

    ADD, SUB, MUL, DIV: the reward and weight times the score. An attempt without the score, or with a divisor of 0, is
    dropped: in its group it would be compared with others whose rewards have another meaning. Raises DataError where no
    attempt has the score.
    """
    dropped: list[Dropped] = []
    for given in reward_shaping_configs:
        shaping = Shaping(**given)
        known = dict.fromkeys(name for row in rows for name in {**row["components"], **scores_of(row)})
        if rows and shaping.stats_key not in known:
            raise DataError(f"{SHAPING}: no attempt of the step has the score stats_key={shaping.stats_key}. Known: "
                            f"{', '.join(known) or 'none'}. Needed an operator before it that gives it.")
        rows, gone = _parted(SHAPING, rows, partial(_unshapable, shaping))
        dropped += gone
        rows = [row | {"reward": _shaped(row["reward"], shaping, _score(row, shaping.stats_key))} for row in rows]
    return rows, dropped


def _unshapable(shaping: Shaping, row: Row) -> str | None:
    score = _score(row, shaping.stats_key)
    if not isinstance(score, int | float | np.number):
        return f"{shaping.stats_key} is {'absent' if score is None else repr(score)}, and changes the reward of others"
    return f"{shaping.weight:g} x {shaping.stats_key} is 0, by which no reward can be divided" if (
        shaping.op_type == "DIV" and shaping.weight * score == 0) else None


def _shaped(reward: float, shaping: Shaping, score: float) -> float:
    change = shaping.weight * float(score)
    if shaping.op_type in ("ADD", "SUB"):
        return reward + (change if shaping.op_type == "ADD" else -change)
    return reward * change if shaping.op_type == "MUL" else reward / change


def _score(row: Row, name: str) -> Any:
    return scores_of(row).get(name, row["components"].get(name))


def _by_group(rows: list[Row]) -> dict[str, list[float]]:
    rewards: dict[str, list[float]] = {}
    for row in rows:
        rewards.setdefault(row["group_id"], []).append(row["reward"])
    return rewards


OPERATORS = {
    "diversity_reward": diversity_reward,
    "invalid_reward_filter": invalid_reward_filter,
    "pass_rate_calculator": pass_rate_calculator,
    "quality_reward": quality_reward,
    "reward_filter": reward_filter,
    "reward_std_filter": reward_std_filter,
    SHAPING: reward_shaping_mapper,
}
