"""Advantages as table operations: each function returns a DuckDB query over the view `batch`.

`batch` holds the usable rows of the explorer steps that a train batch is cut from (pipeline.records.Experience,
status ok). The query yields one row per row of `batch`: (experience_id, advantage). The advantage of a row is given
to each of its action tokens.
"""

import math

from pipeline.errors import ConfigError


def grpo(epsilon: float = 1e-6) -> str:
    """Group-relative advantage (Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, eq. 3 with outcome rewards).

    A = (r - mean_group) / (std_group + epsilon), std the unbiased (n - 1) form. A group is the rows of one task in one
    explorer step. Sums to zero over a group. Degenerate: equal rewards, or a group of one, give 0.
    """
    if not isinstance(epsilon, (int, float)) or not 0 < epsilon < math.inf:
        raise ConfigError(f"algorithm.advantage_fn_args.epsilon={epsilon!r}: needed a number greater than 0, or equal "
                          "rewards would divide by 0.")
    return f"""
        SELECT experience_id,
               (reward - avg(reward) OVER by_group)
               / (coalesce(stddev_samp(reward) OVER by_group, 0) + {float(epsilon)!r}) AS advantage
        FROM batch
        WINDOW by_group AS (PARTITION BY group_id)"""


def reinforce() -> str:
    """The reward itself (Williams, 1992): A = r. No baseline, so the gradient is unbiased and noisy."""
    return "SELECT experience_id, reward AS advantage FROM batch"


ADVANTAGES = {"grpo": grpo, "reinforce": reinforce}
