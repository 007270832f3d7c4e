"""Explorer steps that take the first groups to be complete, and cancel the others (`explorer.over_rollout`).

Such a step prefers tasks with short responses and fast tools. The rows of late groups stay in `experience`, with the
status `late`, so that one can see which tasks they are.
"""

import time
from collections.abc import Callable, Sequence

from ouroboros.workflows.protocol.outcomes import LATE, Outcome

COMPLETE, FAILED, UNFINISHED = range(3)  # states of a group, in the order in which groups are taken


class FirstComplete:
    """Decides when enough groups of a step are complete, and which of them are taken. Depends on time.

    A group is complete when all of its attempts have ended, one of them with a response: failures are often fast, and
    do not replace responses.
    """

    def __init__(self, groups: Sequence[int], needed: int, seconds: float, now: Callable[[], float] = time.monotonic):
        """groups: of each attempt, in the order of the step. needed: groups. seconds: further time for the others."""
        self._groups, self._needed, self._seconds, self._now = groups, needed, seconds, now
        self._since: float | None = None  # when enough were complete

    def reached(self, outcomes: Sequence[Outcome | None]) -> bool:
        """Whether attempts without an outcome are no longer waited for. outcomes: of each attempt, so far."""
        if self._since is None and list(self._states(outcomes).values()).count(COMPLETE) >= self._needed:
            self._since = self._now()
        return self._since is not None and self._now() - self._since >= self._seconds

    def take(self, outcomes: Sequence[Outcome]) -> set[int]:
        """The groups that the step takes: complete ones in its order, then others. Marks the responses of the rest."""
        states = self._states(outcomes)
        taken = set(sorted(states, key=states.get)[:self._needed])
        for group, outcome in zip(self._groups, outcomes, strict=True):
            if group not in taken and outcome.status == "ok":
                outcome.fail(LATE, "of a group that the step did not take (explorer.over_rollout)")
        return taken

    def _states(self, outcomes: Sequence[Outcome | None]) -> dict[int, int]:
        states = dict.fromkeys(self._groups, FAILED)
        for group, outcome in zip(self._groups, outcomes, strict=True):
            if outcome is None or outcome.status == LATE:
                states[group] = UNFINISHED
            elif outcome.status == "ok" and states[group] == FAILED:
                states[group] = COMPLETE
        return states
