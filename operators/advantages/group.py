"""Advantages of whole responses: one number a row, compared within the rows of a group.

A group is the rows of one task in one explorer step (`group_id`).
"""

import math

import pyarrow as pa

from operators.advantages.query import ask, require, require_finite
from pipeline.errors import ConfigError


def grpo(batch: pa.Table, epsilon: float = 1e-6) -> pa.Table:
    """Group-relative advantage (Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, section 4.1.2, outcome rewards).

    A = (r - mean_group) / (std_group + epsilon), std the unbiased (n - 1) form. Sums to zero over a group.
    Degenerate: equal rewards, or a group of one, give 0.
    """
    _check_epsilon(epsilon)
    require(batch, "group_id")
    require_finite(batch, "reward")
    return ask(batch, f"""
        SELECT experience_id,
               CASE WHEN min(reward) OVER by_group = max(reward) OVER by_group THEN 0.0
                    ELSE (reward - avg(reward) OVER by_group)
                         / (stddev_samp(reward) OVER by_group + {float(epsilon)!r}) END AS advantage
        FROM batch WINDOW by_group AS (PARTITION BY group_id)""", "group_id", "reward")


def reinforce(batch: pa.Table) -> pa.Table:
    """The reward itself (Williams, 1992): A = r. No baseline, so the gradient is unbiased and noisy."""
    require_finite(batch, "reward")
    return ask(batch, "SELECT experience_id, reward AS advantage FROM batch", "reward")


def _check_epsilon(epsilon: float) -> None:
    if not isinstance(epsilon, (int, float)) or not 0 < epsilon < math.inf:
        raise ConfigError(f"algorithm.advantage_fn_args.epsilon={epsilon!r}: needed a number greater than 0, or equal "
                          "rewards would divide by 0.")
