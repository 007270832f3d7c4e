"""Two settings compared over several seeds: differences paired by task and seed, and whether they decide.

After every seed one may look: where differences of seeds are about normal, `operators.statistics.evidence` bounds by
ALPHA how often settings without a difference are ever decided, however often one looks. Of seeds that collapse it has
no bound, so few seeds, and seeds of which one is far from the others, decide nothing. What is decided is that one is
better on the tasks that were answered: their choice is no part of the evidence.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ouroboros.operators import statistics
from ouroboros.pipeline.job.progress import is_reward
from ouroboros.pipeline.results import learnt
from ouroboros.pipeline.results.compare import last_scores
from ouroboros.pipeline.results.view import View
from ouroboros.pipeline.store import tables
from ouroboros.pipeline.store.errors import DataError

ALPHA = 0.05
FEWEST = 6  # seeds that decide
FARTHEST = 5  # median distances of the others from their median: 3.4 deviations of a normal


@dataclass(frozen=True)
class Differences:
    """What a setting is better by than another. by_seed: mean over the tasks of a seed, whose number may differ. low,
    high: 95% interval of the mean of `by_seed`: clustered by task and seed where all seeds have the same tasks, else
    Student's t over seeds; infinite for one seed."""

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
        return not undecided(self.by_seed)

    def words(self) -> str:
        """Formats `+4.1 points [1.0, 7.2] over 6 seeds and 256 tasks; evidence 24 of 20: decided on these tasks`."""
        scale, unit = (1, "") if is_reward(self.metric) else (100, " points")
        value, low, high = (f"{scale * number:+z.3g}" for number in (self.mean, self.low, self.high))
        spread = f" [{low}, {high}]" if math.isfinite(self.low) else ""
        count = len(self.by_seed)
        return (f"{value}{unit}{spread} over {count} seed{'s' * (count > 1)} and {self.tasks} tasks; evidence "
                f"{self.evidence:.3g} of {1 / ALPHA:.0f}: {undecided(self.by_seed) or 'decided on these tasks'}")

    def assumes(self) -> str:
        """Returns what the verdict takes for granted: no number of seeds shows that others end alike."""
        count = len(self.by_seed)
        return ("taking differences of seeds as about normal. Of a share f of seeds that end otherwise, as by a "
                f"collapse, {count} seeds show none with probability (1-f)^{count}: {0.9**count:.0%} for one in ten")


def differences(first: Sequence[View], other: Sequence[View], metric: str) -> Differences:
    """Compares runs of two settings, a pair for each seed, each on the first evaluation set that has the metric.

    Both runs of a pair must have answered the same tasks; another seed may have others, as a generator makes them by
    the seed. A task without a value in either run counts in neither. Raises DataError where a run has no such score, or
    where a pair has no tasks in common.
    """
    pairs: list[dict[str, float]] = []
    for a, b in zip(first, other, strict=True):
        before, after = (_values(run, metric) for run in (a, b))
        both = [task for task in before if None not in (before[task], after.get(task))]
        if before.keys() != after.keys() or not both:
            raise DataError(f"{a.run} and {b.run} did not answer the same tasks: no paired differences.")
        pairs.append({task: after[task] - before[task] for task in both})
    by_seed = [math.fsum(values.values()) / len(values) for values in pairs]
    mean, low, high = _interval(pairs, by_seed)
    return Differences(metric, max(map(len, pairs)), by_seed, mean, low, high)


def _interval(pairs: list[dict[str, float]], by_seed: list[float]) -> tuple[float, float, float]:
    mean = math.fsum(by_seed) / len(by_seed)
    if len(pairs) < 2:
        return mean, -math.inf, math.inf
    shared = sorted(set.intersection(*map(set, pairs)))
    if len(shared) > 1 and all(len(values) == len(shared) for values in pairs):
        return statistics.clustered_interval([[values[task] for task in shared] for values in pairs])
    return statistics.reward_interval(by_seed)


def undecided(by_seed: Sequence[float]) -> str:
    """Returns why differences decide nothing; empty where they decide."""
    if statistics.evidence(by_seed) < 1 / ALPHA:
        return "undecided"
    if len(by_seed) < FEWEST:
        return f"undecided before {FEWEST} seeds"
    for number, value in enumerate(by_seed):
        others = [*by_seed[:number], *by_seed[number + 1 :]]
        middle = median(others)  # equal differences differ by rounding
        if abs(value - middle) > FARTHEST * median(abs(one - middle) for one in others) + 1e-9 * abs(middle):
            return (f"undecided while difference {number + 1} of {len(by_seed)} is more than {FARTHEST} median "
                    "distances from the others")
    return ""


def _values(run: View, metric: str) -> dict[str, float | None]:
    score = next((score for score in last_scores(run) if score.metric == metric), None)
    if score is None:
        raise DataError(f"{run.run} has no score {metric}.")
    with tables.connect((run.run, stage.directory) for stage in run.stages) as session:
        return learnt.of_tasks(session, score)
