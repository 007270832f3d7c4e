"""Dynamic sampling: replaces uninformative groups (DAPO, Yu et al. 2025, arXiv:2503.14476, sec. 3.2).

A group of equally good responses has no advantages. The paper samples further tasks until every group of the batch has
0 < correct < G (eq. 11). This module does so place by place, for at most `algorithm.max_resample_rounds` rounds; places
still without such a group are counted as missing. Correctness is `accuracy` rather than the reward, where the reward
function gives it: a length penalty makes rewards of wrong answers differ, and training would then reinforce a wrong
answer for being shorter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ouroboros.pipeline.store.errors import DataError
from ouroboros.workflows.protocol.outcomes import Outcome
from ouroboros.workflows.protocol.roles import rewards_of


@dataclass(frozen=True, slots=True)
class Group:
    """The attempts at one task.

    place: index of the task within the step, from 0. round: 0, or the resampling round that drew it. task: its number
    (explorer/prompts.py). seeds, sampled: of its attempts [repeat_times]. greedy: the additional greedy attempt, or
    None.
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
        """A name that is unique within the step."""
        return f"{self.place}.{self.round}" if self.round else str(self.place)


@dataclass(frozen=True)
class Filled:
    """The final groups of an explorer step.

    final: one group per place, in order. replaced: the discarded groups of those places, as they were. rounds:
    number of resampling rounds, None where groups are never replaced. missing: places whose final group is still
    uninformative. late: groups that were not complete in time (stages/explorer/over_rollout.py).
    """

    final: list[Group]
    replaced: list[Group]
    rounds: int | None = None
    missing: int | None = None
    late: list[Group] = field(default_factory=list)

    @property
    def aside(self) -> list[Group]:
        """The groups that train batches are not cut from."""
        return [*self.replaced, *self.late]

    @property
    def every(self) -> list[Group]:
        return [*self.final, *self.aside]


def fill(
    groups: list[Group], rounds: int, metric: str | None, fresh: Callable[[int, list[Group]], list[Group]],
    late: Sequence[Group] = (),
) -> Filled:
    """Replaces uninformative groups in at most `rounds` rounds; 0 keeps all groups.

    groups: those that the step takes, one per place, in order; late: the others. metric: see `measured`. fresh:
    (round, discarded groups) -> as many groups of other tasks, for the same places. The responses of a group that is
    discarded, or missing in the end, are marked no_variance.
    """
    if not rounds:
        return Filled(groups, [], late=list(late))
    final, replaced, made = list(groups), [], 0
    index = {group.place: number for number, group in enumerate(groups)}
    while (uninformative := [group for group in final if not is_informative(group, metric)]) and made < rounds:
        made += 1
        replaced += uninformative
        for group in fresh(made, uninformative):
            final[index[group.place]] = group
    for group in [*replaced, *uninformative]:
        _mark_no_variance(group, metric)
    return Filled(final, replaced, made, len(uninformative), list(late))


def is_informative(group: Group, metric: str | None) -> bool:
    """Whether the rewarded responses of a group differ in quality, of players those of one of them."""
    name, values = measured(group, metric)
    if name == "reward":
        values = [rewards_of(outcome) for outcome in group.sampled if outcome.status == "ok"]
    return len(set(values)) > 1


def measured(group: Group, metric: str | None) -> tuple[str, list[float]]:
    """The metric by which responses are compared, and its value for each rewarded response.

    metric: accuracy or reward; None: accuracy where the reward function has that component, else reward. Raises
    DataError when accuracy is configured and missing.
    """
    judged = [outcome for outcome in group.sampled if outcome.status == "ok"]
    accurate = all(outcome.accuracy is not None for outcome in judged)
    if metric == "accuracy" and not accurate:
        raise DataError("algorithm.resample_metric=accuracy: the reward functions give no component `accuracy`, 1 for "
                        "solved and 0 for not. Name one that has it, or set resample_metric=reward.")
    if accurate and metric != "reward":
        return "accuracy", [outcome.accuracy for outcome in judged]
    return "reward", [outcome.reward for outcome in judged]


def _mark_no_variance(group: Group, metric: str | None) -> None:
    name, values = measured(group, metric)
    alone = "no other response to the task could be rewarded"
    reason = f"all {len(values)} rewarded responses to the task have {name} {values[0]:g}" if len(values) > 1 else alone
    for outcome in group.sampled:
        if outcome.status == "ok":
            outcome.mark("no_variance", reason)
