"""Estimates of an evaluation, with 95% intervals. Tasks are the independent units; their responses are not."""

import math
from collections.abc import Sequence

Z = 1.959963984540054  # 97.5% point of the normal distribution


def wilson(successes: float, count: int) -> tuple[float, float]:
    """Wilson score interval (1927) of a proportion; sensible at 0 and 1, where the normal interval has no width."""
    if count == 0:
        return 0.0, 1.0
    p, z2 = successes / count, Z * Z
    middle = (p + z2 / (2 * count)) / (1 + z2 / count)
    half = Z / (1 + z2 / count) * math.sqrt(p * (1 - p) / count + z2 / (4 * count * count))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of one value in [0, 1] per task, and its interval: (mean, low, high).

    Normal interval with the standard error over tasks (clustered: the responses to a task are correlated, so they
    count once). Where all tasks agree there is no variance to estimate, and Wilson's interval is given instead.
    """
    count = len(values)
    mean = math.fsum(values) / count
    if min(values) == max(values):  # not variance == 0: rounding leaves 1e-33 of equal thirds
        return values[0], *wilson(values[0] * count, count)
    variance = math.fsum((v - mean) ** 2 for v in values) / (count - 1)
    half = Z * math.sqrt(variance / count)
    return mean, max(mean - half, 0.0), min(mean + half, 1.0)


def pass_at_k(responses: int, solved: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k responses solves the task (Chen et al. 2021, arXiv:2107.03374).

    1 - C(n - c, k) / C(n, k), n responses of which c solved, 1 <= k <= n.
    """
    if not 1 <= k <= responses:
        raise ValueError(f"pass@{k} from {responses} responses")
    return 1.0 - math.comb(responses - solved, k) / math.comb(responses, k)


def reward_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """As `mean_interval`, of values of any size; where all tasks agree, or there is one, the interval has no width."""
    mean = math.fsum(values) / len(values)
    if min(values) == max(values):
        return values[0], values[0], values[0]
    half = Z * math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
    return mean, mean - half, mean + half
