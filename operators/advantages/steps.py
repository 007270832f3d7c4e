"""Advantages of multi-turn agents: a run is (group_id, run_index), and each of its turns is a row.

The result is one number per row, applied to every action token of that turn.
"""

import pyarrow as pa

from ouroboros.operators.advantages.query import ask, refuse_infinite, require, require_finite
from ouroboros.pipeline.settings.arguments.advantages import Gigpo, StepWiseGrpo

GIGPO, STEPS = Gigpo(), StepWiseGrpo()


def step_wise_grpo(batch: pa.Table, epsilon=STEPS.epsilon, enable_step_norm=STEPS.enable_step_norm,
                   std_threshold=STEPS.std_threshold, std_cal_level=STEPS.std_cal_level) -> pa.Table:
    """GRPO over runs, applied to each of their turns (Shao et al. 2024, arXiv:2402.03300).

    As Trinity-RFT's step-wise GRPO. r is the reward of a run's last turn; A = (r - mean over the runs of the group) /
    (std + epsilon), std unbiased, over the group or with std_cal_level batch over all runs; divided by the number of
    turns with enable_step_norm, so that long runs weigh no more than short ones. Assumes that the outcome of a run
    applies to each of its turns. Degenerate: one run, or equal rewards, give 0. std_threshold: groups with std up to
    this, and those of one run, are dropped.
    """
    require(batch, "group_id", "run_index", "turn")
    require_finite(batch, "reward")
    scale = "spread" if std_cal_level == "group" else "coalesce(stddev_samp(reward) OVER (), 1)"
    return ask(batch, f"""
        WITH runs AS (
            SELECT group_id, run_index, arg_max(reward, turn) AS reward, count(*) AS turns
            FROM batch GROUP BY group_id, run_index),
        measured AS (
            SELECT *, avg(reward) OVER g AS middle, coalesce(stddev_samp(reward) OVER g, 0) AS spread,
                   min(reward) OVER g = max(reward) OVER g AS equal, count(*) OVER g AS members
            FROM runs WINDOW g AS (PARTITION BY group_id)),
        scored AS (
            SELECT *, CASE WHEN equal THEN 0.0 ELSE (reward - middle) / ({scale} + {float(epsilon)!r}) END
                   / {"turns" if enable_step_norm else "1"} AS advantage FROM measured)
        SELECT experience_id, advantage FROM batch JOIN scored USING (group_id, run_index)
        WHERE {"true" if std_threshold is None else f"members > 1 AND NOT equal AND spread > {float(std_threshold)!r}"}
        """, "group_id", "run_index", "turn", "reward")


def gigpo(batch: pa.Table, omega=GIGPO.omega, gamma=GIGPO.gamma, fnorm=GIGPO.fnorm, epsilon=GIGPO.epsilon) -> pa.Table:
    """Group in group (Feng et al. 2025, arXiv:2505.10978): A = A_episode + omega A_step.

    Episode: R = sum of a run's step rewards, A_E = (R - mean over the runs of the group) / d. Step: G_t = r_t + gamma
    G_(t+1) within the run; turns of the same group that start from the same state (`state_hash`) form a bucket. In
    buckets of two or more A_S = (G - mean) / d, otherwise 0. d = std + epsilon (unbiased) with fnorm std, 1 with none.

    If no turn of a run has a step_reward, its last turn gets `reward`. Buckets never span tasks, since the same
    observation in two tasks has different expected returns. Assumes that equal hashes mean equal states. Degenerate:
    one run in a group gives A_E = 0, a bucket of one or of equal returns A_S = 0.
    """
    require(batch, "group_id", "run_index", "turn", "state_hash")
    require_finite(batch, "reward")
    if "step_reward" not in batch.column_names:
        batch = batch.append_column("step_reward", pa.nulls(len(batch), pa.float64()))
    refuse_infinite(batch, "step_reward")
    return ask(batch, f"""
        WITH turns AS (
            SELECT *, CASE WHEN count(step_reward) OVER run > 0 THEN coalesce(step_reward, 0)
                      WHEN turn = max(turn) OVER run THEN reward ELSE 0 END AS r,
                   row_number() OVER (PARTITION BY group_id, run_index ORDER BY turn) AS place
            FROM batch WINDOW run AS (PARTITION BY group_id, run_index)),
        episodes AS (SELECT group_id, run_index, sum(r) AS total FROM turns GROUP BY group_id, run_index),
        compared AS (
            SELECT group_id, run_index, {_normalised("total", "PARTITION BY group_id", fnorm, epsilon)} AS episode
            FROM episodes),
        gains AS (
            SELECT here.experience_id, any_value(here.group_id) AS group_id, any_value(here.run_index) AS run_index,
                   any_value(here.state_hash) AS state_hash,
                   sum(later.r * pow({float(gamma)!r}, later.place - here.place)) AS gain
            FROM turns here JOIN turns later USING (group_id, run_index) WHERE later.place >= here.place
            GROUP BY here.experience_id)
        SELECT experience_id, episode + {float(omega)!r}
               * {_normalised("gain", "PARTITION BY group_id, state_hash", fnorm, epsilon)} AS advantage
        FROM gains JOIN compared USING (group_id, run_index)""",
               "group_id", "run_index", "turn", "state_hash", "reward", "step_reward")


def _normalised(value: str, window: str, fnorm: str, epsilon: float) -> str:
    """SQL for (value - mean) / d over a window; exactly 0 where all values are equal."""
    over = f"OVER ({window})"
    scale = f"(stddev_samp({value}) {over} + {float(epsilon)!r})" if fnorm == "std" else "1"
    return (f"(CASE WHEN min({value}) {over} = max({value}) {over} THEN 0.0 "
            f"ELSE ({value} - avg({value}) {over}) / {scale} END)")
