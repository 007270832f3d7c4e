"""Reward functions whose calls are an activity of the process: one that hangs is named, and not the step around it."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

from ouroboros.pipeline.job.activity import Activity
from ouroboros.pipeline.job.own_process import REWARD
from ouroboros.workflows.attempts.user_reward import Rule
from ouroboros.workflows.protocol.outcomes import RewardFunction
from ouroboros.workflows.rewards import Rewards


class WatchedRewards(Rewards):
    """As `Rewards`; a call of a function that scores several rows gives a sign of life with each of them."""

    def __init__(self, config, activity: Activity, directory: Path | None = None):
        super().__init__(config, directory)
        self.activity = activity

    def of(self, taskset, tasks: Sequence = ()) -> list[RewardFunction]:
        return [_watched(function, self.activity) for function in super().of(taskset, tasks)]


def _watched(function: RewardFunction, activity: Activity) -> RewardFunction:
    if not isinstance(function, Rule):  # a model's, or a formula
        return function
    rule = replace(function, function=_renewing(function.function, activity))

    def call(*rows: Any) -> list:
        with activity.calling(f"{REWARD} {rule.title}"):
            return rule(*rows)

    call.counts_opened, call.takes_rows = rule.counts_opened, rule.takes_rows
    return call


def _renewing(function: Callable, activity: Activity) -> Callable:
    """The function of a row, or of all, with a sign of life before and after a call."""
    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        activity.alive()
        found = function(*arguments, **named)
        return _awaited(found, activity) if inspect.isawaitable(found) else found

    call.__name__ = getattr(function, "__name__", type(function).__name__)
    return call


async def _awaited(found: Awaitable, activity: Activity) -> Any:
    try:
        return await found
    finally:
        activity.alive()
