"""Estimates of an evaluation, with 95% intervals. Tasks are the independent units; their responses are not."""

import math
from collections.abc import Sequence


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of one value in [0, 1] per task, and its 95% interval: (mean, low, high).

    Student's t interval with the standard error over tasks (clustered: the responses to a task are correlated, so they
    count once) of the values and two more, a 0 and a 1. As in Agresti & Coull 1998 (The American Statistician 52), who
    add two of each to a proportion, these pull the middle to 1/2 and leave doubt where all tasks agree: 0 of n does not
    end at 0, and one method serves proportions and means of shares. Of evaluations of 2 to 500 tasks it covers the true
    rate in 93% or more, whatever the rate (tests/operators/test_statistics.py). The mean is always inside, at most one
    standard error from the middle.
    """
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    count = len(values)
    more = [*values, 0.0, 1.0]
    middle = math.fsum(more) / len(more)
    variance = math.fsum((v - middle) ** 2 for v in more) / (len(more) - 1)
    half = float(stdtrit(len(more) - 1, 0.975)) * math.sqrt(variance / len(more))
    return math.fsum(values) / count, max(middle - half, 0.0), min(middle + half, 1.0)


def pass_at_k(responses: int, solved: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k responses solves the task (Chen et al. 2021, arXiv:2107.03374).

    1 - C(n - c, k) / C(n, k), n responses of which c solved, 1 <= k <= n.
    """
    if not 1 <= k <= responses:
        raise ValueError(f"pass@{k} from {responses} responses")
    return 1.0 - math.comb(responses - solved, k) / math.comb(responses, k)
