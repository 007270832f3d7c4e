"""Evaluation estimates with 95% intervals. Tasks are independent units; their responses are not."""

import math
from collections.abc import Sequence

PRECISION = 0.25  # c of `evidence`: mean differences of up to some four deviations are expected


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of one value in [0, 1] per task, and its 95% interval: (mean, low, high).

    Student's t interval with the standard error over tasks (clustered, because responses to the same task are
    correlated) of the values plus a 0 and a 1. As in Agresti & Coull 1998 (The American Statistician 52), who add two
    of each to a proportion, these shrink the centre towards 1/2 and keep the interval wide where all tasks agree: 0 of
    n has an upper bound above 0, and one method serves proportions and means of shares. For evaluations of 2 to 500
    tasks it covers the true rate in 93% or more, for any rate (tests/operators/test_statistics.py). The mean is always
    inside, at most one standard error from the centre.
    """
    count = len(values)
    more = [*values, 0.0, 1.0]
    middle = math.fsum(more) / len(more)
    variance = math.fsum((v - middle) ** 2 for v in more) / (len(more) - 1)
    half = _quantile(len(more) - 1) * math.sqrt(variance / len(more))
    return math.fsum(values) / count, max(middle - half, 0.0), min(middle + half, 1.0)


def pass_at_k(responses: int, solved: int, k: int) -> float:
    """Unbiased estimate of the probability that at least one of k responses solves the task.

    1 - C(n - c, k) / C(n, k), n responses of which c solved, 1 <= k <= n (Chen et al. 2021, arXiv:2107.03374).
    """
    if not 1 <= k <= responses:
        raise ValueError(f"pass@{k} from {responses} responses")
    return 1.0 - math.comb(responses - solved, k) / math.comb(responses, k)


def reward_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of one unbounded reward per task, with Student's t interval at 95%: (mean, low, high).

    Where all tasks agree, or there is only one, the interval has zero width, since a reward has no bounds.
    """
    if min(values) == max(values):
        return values[0], values[0], values[0]
    mean, count = math.fsum(values) / len(values), len(values)
    half = _quantile(count - 1) * math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (count - 1) / count)
    return mean, mean - half, mean + half


def difference_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of one difference of two shares per task, in [-1, 1], with its 95% interval: (mean, low, high).

    `mean_interval` on the scale from -1 to 1: Student's t interval of the values plus a -1 and a 1 (as Agresti & Min
    2005, Statistics in Medicine 24, add pseudo pairs), which has a width where all differences are equal. For 2 to 500
    tasks it covers the true difference in 93% or more, and where both models solve each task independently and at one
    rate it excludes 0 in 5% or less (tests/operators/test_statistics.py). Needs at least one value.
    """
    _, low, high = mean_interval([(1 + value) / 2 for value in values])
    return math.fsum(values) / len(values), 2 * low - 1, 2 * high - 1


def clustered_interval(values: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Mean difference of two runs over seeds and tasks, with its 95% interval: (mean, low, high).

    values: [seeds, tasks], at least two of each. Two-way clustered: differences of one task, and differences of one
    seed, are correlated. The variance of the mean is that with clusters of seeds plus that with clusters of tasks minus
    that of separate values, each times G/(G-1) of its number G (Cameron, Gelbach & Miller 2011, JBES 29), and not below
    the larger of the first two; the quantile is Student's t with one degree of freedom less than the fewer clusters.
    Equal differences everywhere have an interval without width.
    """
    seeds, tasks = len(values), len(values[0])
    count = seeds * tasks
    mean = math.fsum(math.fsum(row) for row in values) / count
    off = [[value - mean for value in row] for row in values]
    parts = [[math.fsum(row) for row in off], [math.fsum(column) for column in zip(*off, strict=True)],
             [value for row in off for value in row]]
    by_seed, by_task, alone = (len(part) / (len(part) - 1) * math.fsum(v * v for v in part) / count**2
                               for part in parts)
    half = _quantile(min(seeds, tasks) - 1) * math.sqrt(max(by_seed + by_task - alone, by_seed, by_task))
    return mean, mean - half, mean + half


def evidence(differences: Sequence[float]) -> float:
    """E-value against "the mean is 0", of differences that are looked at one after the other.

    The mixture of Wang & Ramdas 2024 (arXiv:2310.03722, theorem 4.9): with S the sum, V the sum of squares of n normal
    values of unknown variance, and mean / deviation spread by a normal with variance 1 / c,

        E_n = sqrt(c / (n + c)) ((n + c) V / ((n + c) V - S^2))^(n / 2),    c = 1/4

    Where the mean is 0 it ever reaches 1 / alpha with probability at most alpha, whenever one looks and stops. Equal
    zeros, or no value, are no evidence: at most 1.
    """
    count, squares = len(differences), math.fsum(d * d for d in differences)
    if not squares:
        return math.sqrt(PRECISION / (count + PRECISION))
    left = (count + PRECISION) * squares
    ratio = left / (left - math.fsum(differences) ** 2)
    return math.exp(min(0.5 * math.log(PRECISION / (count + PRECISION)) + count / 2 * math.log(ratio), 700.0))


def _quantile(freedom: int) -> float:
    """The 97.5% quantile of Student's t."""
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    return float(stdtrit(freedom, 0.975))
