"""Dynamic sampling (DAPO, Yu et al. 2025, arXiv:2503.14476, section 3.2): groups that teach nothing give way to others.

Responses that are all equally good leave a group without advantages. The paper asks for more tasks until every group of
the batch has 0 < correct < G (eq. 11). So here, place by place, but at most `algorithm.max_resample_rounds` times: what
is still missing then is missing, and counted. Correct is `accuracy`, not the reward, where the reward function gives
one: a penalty on length makes the rewards of wrong answers differ, and one of them would be taught for being shorter.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline.store.errors import DataError
from workflows.runner import Outcome


@dataclass(slots=True)
class Group:
    """The attempts at one task.

    place: of the task within the step, from 0. round: 0, or the round of fresh tasks that brought it. task: its number
    (explorer/prompts.py). seeds, sampled: of its attempts [repeat_times]. greedy: the attempt beside them, or None.
    """

    place: int
    round: int
    task: int
    seeds: list[int]
    greedy_seed: int
    sampled: list[Outcome] = field(default_factory=list)
    greedy: Outcome | None = None

    @property
    def name(self) -> str:
        """What tells it from the other groups of the step."""
        return f"{self.place}.{self.round}" if self.round else str(self.place)


@dataclass(frozen=True)
class Filled:
    """The groups of an explorer step, when no more are asked for.

    standing: one for every place, in order. replaced: those that stood there before, as they were given up. rounds: of
    fresh tasks, None where groups are never replaced. missing: places whose group teaches nothing even so.
    """

    standing: list[Group]
    replaced: list[Group]
    rounds: int | None = None
    missing: int | None = None

    @property
    def every(self) -> list[Group]:
        return [*self.standing, *self.replaced]


def fill(
    groups: list[Group], rounds: int, metric: str | None, fresh: Callable[[int, list[Group]], list[Group]]
) -> Filled:
    """Replaces groups that teach nothing, in at most `rounds` rounds; 0: leaves them all as they are.

    groups: one for every place, in order. metric: see `measured`. fresh: (round, groups that are given up) -> as many,
    of other tasks, for the same places. The responses of a group that is given up, or missing in the end, are marked
    no_variance.
    """
    if not rounds:
        return Filled(groups, [])
    standing, replaced, made = list(groups), [], 0
    while (idle := [group for group in standing if not teaches(group, metric)]) and made < rounds:
        made += 1
        replaced += idle
        for group in fresh(made, idle):
            standing[group.place] = group
    for group in [*replaced, *idle]:
        _give_up(group, metric)
    return Filled(standing, replaced, made, len(idle))


def teaches(group: Group, metric: str | None) -> bool:
    """Whether the responses of a group that could be rewarded are not all equally good."""
    return len(set(measured(group, metric)[1])) > 1


def measured(group: Group, metric: str | None) -> tuple[str, list[float]]:
    """What responses are held to be equal by, and its value for each that could be rewarded.

    metric: accuracy or reward; None: accuracy where the reward function has that component, else reward. Raises
    DataError when accuracy is asked for and there is none.
    """
    judged = [outcome for outcome in group.sampled if outcome.status == "ok"]
    accurate = all(outcome.accuracy is not None for outcome in judged)
    if metric == "accuracy" and not accurate:
        raise DataError("algorithm.resample_metric=accuracy: the reward functions give no component `accuracy`, 1 for "
                        "solved and 0 for not. Name one that has it, or set resample_metric=reward.")
    if accurate and metric != "reward":
        return "accuracy", [outcome.accuracy for outcome in judged]
    return "reward", [outcome.reward for outcome in judged]


def _give_up(group: Group, metric: str | None) -> None:
    name, values = measured(group, metric)
    alone = "no other response to the task could be rewarded"
    reason = f"all {len(values)} rewarded responses to the task have {name} {values[0]:g}" if len(values) > 1 else alone
    for outcome in group.sampled:
        if outcome.status == "ok":
            outcome.status, outcome.reason = "no_variance", reason
