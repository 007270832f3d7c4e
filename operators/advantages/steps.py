"""Advantages of multi-turn agents: a run is (group_id, run_index), and each of its turns is a row.

The result is one number per row, applied to every action token of that turn.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ouroboros.operators.advantages.group import Compared, Grouped
from ouroboros.operators.advantages.query import ask, refuse_infinite, require, require_finite
from ouroboros.pipeline.store.lazy import pa


class StepWiseGrpo(Compared):
    """GRPO over attempts of several turns, given to each of their turns.

    Shao et al. 2024, arXiv:2402.03300, as Trinity-RFT's step-wise GRPO. r is the reward of a run's last turn; A = (r -
    mean over the runs of the group) / (std + epsilon), std unbiased, over the group or with std_cal_level batch over
    all runs; divided by the number of turns with enable_step_norm, so that long runs weigh no more than short ones.
    Assumes that the outcome of a run applies to each of its turns. Degenerate: one run, or equal rewards, give 0.
    std_threshold: groups with std up to this, and those of one run, are dropped.
    """
    enable_step_norm: bool = Field(False, description="whether advantages are divided by the number of turns of the "
                                                      "attempt")

    def __call__(self, batch: pa.Table) -> pa.Table:
        require(batch, "group_id", "run_index", "turn")
        require_finite(batch, "reward")
        least = self.std_threshold
        kept = "true" if least is None else f"members > 1 AND NOT equal AND spread > {float(least)!r}"
        scale = "spread" if self.std_cal_level == "group" else "coalesce(stddev_samp(reward) OVER (), 1)"
        return ask(batch, f"""
            WITH runs AS (
                SELECT group_id, run_index, arg_max(reward, turn) AS reward, count(*) AS turns
                FROM batch GROUP BY group_id, run_index),
            measured AS (
                SELECT *, avg(reward) OVER g AS middle, coalesce(stddev_samp(reward) OVER g, 0) AS spread,
                       min(reward) OVER g = max(reward) OVER g AS equal, count(*) OVER g AS members
                FROM runs WINDOW g AS (PARTITION BY group_id)),
            scored AS (
                SELECT *, CASE WHEN equal THEN 0.0 ELSE (reward - middle) / ({scale} + {float(self.epsilon)!r}) END
                       / {"turns" if self.enable_step_norm else "1"} AS advantage FROM measured)
            SELECT experience_id, advantage FROM batch JOIN scored USING (group_id, run_index)
            WHERE {kept}""", "group_id", "run_index", "turn", "reward")


class Gigpo(Grouped):
    """Group in group, for attempts of several turns: of whole attempts, and of turns from the same state.

    Feng et al. 2025, arXiv:2505.10978: A = A_episode + omega A_step. Episode: R = sum of a run's step rewards, A_E = (R
    - mean over the runs of the group) / d. Step: G_t = r_t + gamma G_(t+1) within the run; turns of the same group that
    start from the same state (`state_hash`) form a bucket. In buckets of two or more A_S = (G - mean) / d, otherwise 0.
    d = std + epsilon (unbiased) with fnorm std, 1 with none.

    If no turn of a run has a step_reward, its last turn gets `reward`. Buckets never span tasks, since the same
    observation in two tasks has different expected returns. Assumes that equal hashes mean equal states. Degenerate:
    one run in a group gives A_E = 0, a bucket of one or of equal returns A_S = 0.
    """
    compares_states = True
    reads_steps = True
    omega: float = Field(1.0, ge=0, description="weight of the advantage of the turn")
    gamma: float = Field(1.0, ge=0, description="discount from one turn to the next")
    fnorm: Literal["none", "std"] = Field("none", description="divisor of differences; std: the standard deviation + "
                                                              "epsilon")
    epsilon: float = Field(1e-6, ge=0, description="constant added to the standard deviation")

    def __call__(self, batch: pa.Table) -> pa.Table:
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
                SELECT group_id, run_index, {self._normalised("total", "group_id")} AS episode FROM episodes),
            gains AS (
                SELECT here.experience_id, any_value(here.group_id) AS group_id, any_value(here.run_index) AS run_index,
                       any_value(here.state_hash) AS state_hash,
                       sum(later.r * pow({float(self.gamma)!r}, later.place - here.place)) AS gain
                FROM turns here JOIN turns later USING (group_id, run_index) WHERE later.place >= here.place
                GROUP BY here.experience_id)
            SELECT experience_id, episode + {float(self.omega)!r}
                   * {self._normalised("gain", "group_id, state_hash")} AS advantage
            FROM gains JOIN compared USING (group_id, run_index)""",
                   "group_id", "run_index", "turn", "state_hash", "reward", "step_reward")
    def _normalised(self, value: str, within: str) -> str:
        """SQL for (value - mean) / d over rows that are equal in the columns `within`; exactly 0 where all values are
        equal."""
        over = f"OVER (PARTITION BY {within})"
        scale = f"(stddev_samp({value}) {over} + {float(self.epsilon)!r})" if self.fnorm == "std" else "1"
        return (f"(CASE WHEN min({value}) {over} = max({value}) {over} THEN 0.0 "
                f"ELSE ({value} - avg({value}) {over}) / {scale} END)")
