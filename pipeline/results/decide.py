"""Two settings compared over several seeds: differences paired by task and seed, and whether they decide.

After every seed one may look: `operators.statistics.evidence` bounds how often runs without a difference are ever
decided by ALPHA, however often one looks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from operators import statistics
from pipeline.job.progress import is_reward
from pipeline.results import learnt
from pipeline.results.compare import last_scores
from pipeline.results.view import View
from pipeline.store import tables
from pipeline.store.errors import DataError

ALPHA = 0.05
MOST = 20  # seeds


@dataclass(frozen=True)
class Differences:
    """What a setting is better by than another. by_seed: mean over the tasks, per seed. low, high: 95% interval of the
    mean, clustered by task and seed; infinite for one seed."""

    metric: str
    tasks: int
    by_seed: list[float]
    mean: float
    low: float
    high: float

    @property
    def evidence(self) -> float:
        return statistics.evidence(self.by_seed)

    @property
    def decided(self) -> bool:
        return self.evidence >= 1 / ALPHA

    def words(self) -> str:
        """Formats `better by +4.1 points [1.0, 7.2] over 3 seeds and 256 tasks; evidence 24 of 20: decided`."""
        scale, unit = (1, "") if is_reward(self.metric) else (100, " points")
        value, low, high = (f"{scale * number:+z.3g}" for number in (self.mean, self.low, self.high))
        spread = f" [{low}, {high}]" if math.isfinite(self.low) else ""
        count = len(self.by_seed)
        return (f"{value}{unit}{spread} over {count} seed{'s' * (count > 1)} and {self.tasks} tasks; evidence "
                f"{self.evidence:.3g} of {1 / ALPHA:.0f}: {'decided' if self.decided else 'undecided'}")


def differences(first: Sequence[View], other: Sequence[View], metric: str) -> Differences:
    """Compares runs of two settings, a pair for each seed, on their first evaluation set in common.

    Raises DataError where a run has no such score, or where two did not answer the same tasks.
    """
    rows: list[list[float]] = []
    tasks: list[str] | None = None
    for a, b in zip(first, other, strict=True):
        before, after = (_values(run, metric) for run in (a, b))
        both = sorted(task for task in before.keys() & after.keys() if None not in (before[task], after[task]))
        if not both or before.keys() != after.keys() or tasks not in (None, both):
            raise DataError(f"{a.run} and {b.run} did not answer the same tasks, or other ones than the runs before.")
        tasks = both
        rows.append([after[task] - before[task] for task in both])
    by_seed = [math.fsum(row) / len(row) for row in rows]
    mean, low, high = (statistics.clustered_interval(rows) if len(rows) > 1 and len(rows[0]) > 1 else
                       (math.fsum(by_seed) / len(by_seed), -math.inf, math.inf))
    return Differences(metric, len(rows[0]), by_seed, mean, low, high)


def decided_after(by_seed: Sequence[float]) -> int | None:
    """Returns the number of differences after which one who looks after each stops; None if none decides."""
    return next((count for count in range(1, len(by_seed) + 1)
                 if statistics.evidence(by_seed[:count]) >= 1 / ALPHA), None)


def _values(run: View, metric: str) -> dict[str, float | None]:
    score = next((score for score in last_scores(run) if score.metric == metric), None)
    if score is None:
        raise DataError(f"{run.run} has no score {metric}.")
    with tables.connect((run.run, stage.directory) for stage in run.stages) as session:
        return learnt.of_tasks(session, score)
