"""The number of attempts in progress, by the engine's key/value cache (`explorer.runner_concurrency: auto`).

Additive increase, multiplicative decrease (Chiu and Jain 1989, "Analysis of the increase and decrease algorithms for
congestion avoidance"). A preempted request is computed again from its beginning, and attempts of several turns lose the
prefix that their next turn would reuse; an attempt that begins later loses nothing.
"""

from ouroboros.workflows.protocol.engine import Pressure

BACK_OFF = 0.75  # of the attempts in progress, after a preemption
FULL = 0.9  # share of the cache above which no more attempts are added
STEPS = 64  # looks at the engine, one a second, in which the limit grows by its first value


class Concurrency:
    """limit: attempts in progress at once; none is cancelled when it falls. Depends on time."""

    def __init__(self, places: int):
        """places: sequences that the engines decode at once, the first limit."""
        self.limit, self._step = places, max(places // STEPS, 1)
        self._preemptions: int | None = None  # until the last look

    def update(self, pressure: Pressure, active: int) -> None:
        """Adjusts the limit. active: attempts in progress; fewer than the limit say nothing about a higher one."""
        preempted = self._preemptions is not None and pressure.preemptions > self._preemptions
        self._preemptions = pressure.preemptions
        if preempted:
            self.limit = max(int(min(self.limit, active) * BACK_OFF), 1)
        elif pressure.usage < FULL and active >= self.limit:
            self.limit += self._step


def concurrency_of(explorer) -> int | Concurrency | None:
    """Returns the limit that the settings of section `explorer` name; None: all attempts at once."""
    given, model = explorer.runner_concurrency, explorer.rollout_model
    return Concurrency(model.max_num_seqs * model.engine_num) if given == "auto" else given
