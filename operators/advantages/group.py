"""Advantages of whole attempts: one number each, compared within a group.

A group is the attempts at one task in one explorer step (`group_id`). An attempt of several rows (one per turn) counts
once, with the reward of its last row, in means, standard deviations and choices; all of its rows get its advantage,
which applies to each action token.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from pydantic import Field

from ouroboros.operators.advantages.action_tokens import action_tokens
from ouroboros.operators.advantages.attempts import attempts
from ouroboros.operators.advantages.query import ask, require, require_finite
from ouroboros.pipeline.settings.arguments.base import Advantage
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.lazy import np, pa, pc

# r - mean, exactly 0 where all rewards are equal: in binary the mean of three times 0.1 is not 0.1
CENTRED = "CASE WHEN min({0}) OVER g = max({0}) OVER g THEN 0.0 ELSE {0} - avg({0}) OVER g END"
WINDOW = "WINDOW g AS (PARTITION BY group_id)"


class Grouped(Advantage):
    """A reward, compared with those of its group."""
    compares_groups = True


class Compared(Grouped):
    """Rewards compared within a group and divided by their standard deviation."""
    epsilon: float = Field(1e-6, gt=0, description="constant added to the standard deviation")
    std_threshold: float | None = Field(
        None, ge=0, description="groups whose standard deviation is at most this, and groups of one, are left out")
    std_cal_level: Literal["group", "batch"] = Field("group", description="rows whose standard deviation divides")


class Grpo(Compared):
    """Group-relative advantage: the reward less the mean of the group, over their standard deviation.

    With outcome rewards (Shao et al. 2024, arXiv:2402.03300, sec. 4.1.2). A = (r - mean_group) / (std + epsilon), std
    the unbiased (n - 1) form over the group, or over all rows with std_cal_level batch. Assumes independent responses
    to one task. Sums to zero over a group. Degenerate: equal rewards, or a group of one, give 0.

    std_threshold: groups with std up to this, and groups of one, are dropped. duplicate_experiences: each dropped group
    is replaced by a kept one, drawn with replacement by a hash of group ids, hence reproducible. rank_penalty p: r
    becomes r (1 - p k / n), k the rank of the attempt's mean log-prob in its group from 0, the least likely (ties share
    their mean rank), in mean, std and numerator, so that unlikely successes count more (after He et al. 2025,
    arXiv:2506.02355). Assumes r >= 0.
    """
    duplicate_experiences: bool = Field(False, description="whether kept groups replace those of std_threshold")
    rank_penalty: float | None = Field(
        None, ge=0, le=1, description="share of the reward that the likeliest responses of a group lose, by rank")

    def __call__(self, batch: pa.Table) -> pa.Table:
        require(batch, "group_id")
        require_finite(batch, "reward")
        rows, batch = batch, _scored(batch, self.rank_penalty)
        scale = "spread" if self.std_cal_level == "group" else "coalesce(stddev_samp(score) OVER (), 1)"
        made = ask(batch, f"""
            WITH measured AS (
                SELECT *, {CENTRED.format("score")} AS gap, min(score) OVER g = max(score) OVER g AS equal,
                       coalesce(stddev_samp(score) OVER g, 0) AS spread, count(*) OVER g AS members FROM batch {WINDOW})
            SELECT experience_id, group_id, members, CASE WHEN equal THEN 0.0 ELSE spread END AS spread,
                   CASE WHEN equal THEN 0.0 ELSE gap / ({scale} + {float(self.epsilon)!r}) END AS advantage
            FROM measured""", "group_id", "score")
        if self.std_threshold is not None:
            made = _without_small_spread(made, self.std_threshold, self.duplicate_experiences)
        return attempts(rows).spread(rows, made.select(["experience_id", "advantage"]))


class DrGrpo(Grouped):
    """GRPO without the division by the standard deviation.

    Liu et al. 2025, arXiv:2503.20783, sec. 3.1: A = r - mean_group. Dividing by std gives tasks with nearly equal
    rewards, the easiest and the hardest, a higher weight. Assumes independent responses to one task. Sums to zero over
    a group; equal rewards, or a group of one, give 0. Use with loss_agg_mode seq-mean-token-sum-norm.
    """

    def __call__(self, batch: pa.Table) -> pa.Table:
        return compare(batch, CENTRED.format("reward"))


class Maxrl(Grouped):
    """Maximum-likelihood RL: the reward less the mean of the group, over that mean.

    Tajwar et al. 2026, arXiv:2602.02710: A = (r - mean_group) / (mean_group + epsilon). With rewards of 0 and 1 its
    mean is, over the group, the gradient of a truncated series of log p, p the chance of success, where dr_grpo has
    that of p: a task that is seldom solved weighs 1 / p. Assumes r >= 0; unequal rewards whose mean is not above 0 are
    refused, since every sign would turn. Sums to zero over a group; equal rewards, or a group of one, give 0.
    """
    epsilon: float = Field(1e-6, gt=0, description="constant added to the mean")

    def __call__(self, batch: pa.Table) -> pa.Table:
        mean = f"CASE WHEN avg(reward) OVER g > 0 THEN avg(reward) OVER g + {float(self.epsilon)!r} END"
        gap = CENTRED.format("reward")
        made = compare(batch, f"CASE WHEN min(reward) OVER g = top THEN 0.0 ELSE ({gap}) / {mean} END")
        if made["advantage"].null_count:
            id_ = made.filter(pc.is_null(made["advantage"]))["experience_id"][0]
            raise DataError("algorithm.advantage_fn=maxrl divides by the mean reward of a group, and that of row "
                            f"{id_} has none above 0. Give rewards of at least 0, or take dr_grpo.")
        return made


class GrpoPassk(Grouped):
    """GRPO for pass@k, k the size of the group: the best response alone, by its lead over the second best.

    Tang et al. 2025, arXiv:2503.19595: A = (best - second best) / (std_group + epsilon). The best response of a group
    has it, all others 0: the leave-one-out form of the objective max r. std is unbiased; without
    norm_adv_by_std_in_grpo nothing is divided. Assumes that an answer may be tried k times. Two responses that are
    equally good, equal rewards, or a group of one, give 0.
    """
    epsilon: float = Field(1e-6, gt=0, description="constant added to the standard deviation")
    norm_adv_by_std_in_grpo: bool = Field(True, description="whether the lead is divided by the standard deviation of "
                                                            "the group")

    def __call__(self, batch: pa.Table) -> pa.Table:
        scale = f"(stddev_samp(reward) OVER g + {float(self.epsilon)!r})" if self.norm_adv_by_std_in_grpo else "1"
        second = "list_sort(list(reward) OVER g, 'DESC')[2]"
        return compare(batch, f"CASE WHEN reward = top AND top > {second} THEN (top - {second}) / {scale} ELSE 0.0 END")


class Reinforce(Advantage):
    """The reward itself, without a baseline.

    A = r (Williams 1992, REINFORCE): unbiased for on-policy samples, with high variance. Assumes that the sign of the
    reward separates good from bad: if all are positive, every response becomes more likely. A reward of 0 has no
    effect; a group of one is not special.
    """

    def __call__(self, batch: pa.Table) -> pa.Table:
        require_finite(batch, "reward")
        return ask(batch, "SELECT experience_id, reward AS advantage FROM batch", "reward")


class Rloo(Grouped):
    """Leave-one-out: the reward less the mean of the others in the group.

    Ahmadian et al. 2024, arXiv:2402.14740: A_i = r_i - mean of the others, equal to (r_i - mean) n / (n - 1). Unbiased
    assuming independent on-policy responses, since the baseline does not depend on r_i. Sums to zero over a group;
    equal rewards give 0. In a group of one there are no others: A = r.
    """

    def __call__(self, batch: pa.Table) -> pa.Table:
        return compare(batch, f"CASE WHEN count(*) OVER g = 1 THEN reward ELSE ({CENTRED.format('reward')}) "
                              "* count(*) OVER g / (count(*) OVER g - 1) END")


class Opmd(Grouped):
    """Online policy mirror descent: the reward less a baseline of the group.

    Kimi k1.5, arXiv:2501.12599; Yao et al. 2025, arXiv:2509.24203: A = r - b. opmd_baseline mean: b is the mean of the
    group. logavgexp: b = tau log mean exp(r / tau), tau > 0, the log-partition function that makes the optimum of the
    regularised objective consistent; never below the mean, which is its limit for large tau. Assumes that the
    regularisation policy sampled the group. Equal rewards give 0; a group of one has b = 0: A = r.
    """
    opmd_baseline: Literal["mean", "logavgexp"] = Field("mean", description="baseline of a group; logavgexp: tau log "
                                                                            "mean exp(r / tau)")
    tau: float = Field(1.0, gt=0, description="temperature of logavgexp")

    def __call__(self, batch: pa.Table) -> pa.Table:
        tau = repr(float(self.tau))  # reward - top is at most 0, so exp does not overflow
        soft = f"reward - top - {tau} * ln(avg(exp((reward - top) / {tau})) OVER g)"
        compared = CENTRED.format("reward") if self.opmd_baseline == "mean" else soft
        return compare(batch, f"CASE WHEN count(*) OVER g = 1 THEN reward ELSE {compared} END")


class Asymre(Grouped):
    """Asymmetric REINFORCE: the reward less the mean of the group, shifted down.

    Arnal et al. 2025, arXiv:2506.20520: A = r - (mean_group + baseline_shift). A baseline below the mean puts more
    weight on successes than on failures, which off-policy data tolerate; with a shift of at least 0 the policy may
    collapse. Assumes rewards on a scale on which the shift is small. Sums to -n shift over a group; equal rewards give
    -shift each; a group of one: A = r.
    """
    baseline_shift: float = Field(-0.1, description="shift added to the mean; below 0 successes teach more than "
                                                    "failures")

    def __call__(self, batch: pa.Table) -> pa.Table:
        return compare(batch, f"CASE WHEN count(*) OVER g = 1 THEN reward ELSE ({CENTRED.format('reward')}) "
                              f"- ({float(self.baseline_shift)!r}) END")


class Rec(Grouped):
    """Group-relative REINFORCE of the REC family: the reward less the mean over the kept rows.

    Yao et al. 2025, arXiv:2509.24203. std_normalize: divided by (population std of the kept rows + epsilon). drop
    balance: where rows below the mean outnumber the others, only as many of them as of the others are kept, chosen by a
    hash of experience_id; the rest get A = 0. Assumes independent responses to one task. Equal rewards give 0; a group
    of one keeps A = r (mean 0, std 1).
    """
    epsilon: float = Field(1e-6, gt=0, description="constant added to the standard deviation")
    std_normalize: bool = Field(False, description="whether advantages are divided by the standard deviation of the "
                                                   "kept rows")
    drop: Literal["balance"] | None = Field(None, description="rows that are left out; balance: as many rows below the "
                                                              "mean are kept as above")

    def __call__(self, batch: pa.Table) -> pa.Table:
        require(batch, "group_id")
        require_finite(batch, "reward")
        kept = "good OR bads <= goods OR place <= goods" if self.drop == "balance" else "true"
        scale = f"(CASE WHEN n = 1 THEN 1 ELSE spread END + {self.epsilon!r})" if self.std_normalize else "1"
        made = ask(_one_each(batch), f"""
            WITH signed AS (SELECT *, {CENTRED.format('reward')} >= 0 AS good FROM batch {WINDOW}),
            placed AS (
                SELECT *, count(*) FILTER (good) OVER g AS goods, count(*) FILTER (NOT good) OVER g AS bads,
                       row_number() OVER (PARTITION BY group_id, good ORDER BY md5(experience_id), experience_id)
                       AS place FROM signed {WINDOW}),
            chosen AS (SELECT experience_id, group_id, reward, {kept} AS kept FROM placed),
            measured AS (
                SELECT *, count(*) FILTER (kept) OVER g AS n, stddev_pop(reward) FILTER (kept) OVER g AS spread,
                       avg(reward) FILTER (kept) OVER g AS middle, min(reward) FILTER (kept) OVER g AS low,
                       max(reward) FILTER (kept) OVER g AS high FROM chosen {WINDOW})
            SELECT experience_id, CASE WHEN NOT kept THEN 0.0 WHEN n = 1 THEN reward / {scale} WHEN low = high THEN 0.0
                   ELSE (reward - middle) / {scale} END AS advantage FROM measured""", "group_id", "reward")
        return attempts(batch).spread(batch, made)


class Raft(Grouped):
    """Reward-ranked fine-tuning: the best row of each group, A = 1, and no others.

    Dong et al. 2023, arXiv:2304.06767. Use with the loss sft. Ties are resolved by the smallest experience_id of their
    last rows. Assumes that the best response is good: a group without success, or of one, still trains on its first.
    Use tasks that the model can solve.
    """
    chooses_rows = True

    def __call__(self, batch: pa.Table) -> pa.Table:
        require(batch, "group_id")
        require_finite(batch, "reward")
        made = ask(_one_each(batch), """
            SELECT experience_id, 1.0::DOUBLE AS advantage FROM batch
            QUALIFY row_number() OVER (PARTITION BY group_id ORDER BY reward DESC, experience_id) = 1""",
                   "group_id", "reward")
        return attempts(batch).spread(batch, made)


def compare(batch: pa.Table, advantage: str) -> pa.Table:
    """advantage: SQL over `reward`, the `top` reward of the attempt's group, and the window g of that group."""
    require(batch, "group_id")
    require_finite(batch, "reward")
    made = ask(_one_each(batch), f"""
        WITH topped AS (SELECT *, max(reward) OVER g AS top FROM batch {WINDOW})
        SELECT experience_id, {advantage} AS advantage FROM topped {WINDOW}""", "group_id", "reward")
    return attempts(batch).spread(batch, made)


def _scored(batch: pa.Table, rank_penalty: float | None) -> pa.Table:
    """A row per attempt with its `score`: the reward, reduced by likelihood rank when rank_penalty is set."""
    ones = _one_each(batch)
    if rank_penalty is None:
        return ones.append_column("score", ones["reward"])
    require(batch, "rollout_logprobs")
    tokens = action_tokens(batch)
    sums = np.bincount(tokens.owners, tokens.take(batch, "rollout_logprobs"), len(ones))
    likelihood = pa.array(sums / np.maximum(tokens.counts, 1))
    place = ones.append_column("place", pa.array(np.arange(len(ones)))).append_column("likelihood", likelihood)
    return ones.append_column("score", ask(place, f"""
        SELECT reward * (1 - {float(rank_penalty)!r} * (rank() OVER (PARTITION BY group_id ORDER BY likelihood) - 1
               + (count(*) OVER (PARTITION BY group_id, likelihood) - 1) / 2) / count(*) OVER g) AS score
        FROM batch {WINDOW} ORDER BY place""", "group_id", "reward", "likelihood", "place")["score"])


def _one_each(batch: pa.Table) -> pa.Table:
    """The last row of each attempt; the batch itself where each row is one."""
    last = attempts(batch).last
    return batch if len(last) == len(batch) else batch.take(pa.array(last))


def _without_small_spread(made: pa.Table, threshold: float, duplicate: bool) -> pa.Table:
    """Drops groups of one and groups with std up to `threshold`; with `duplicate`, resamples kept ones."""
    kept_row = np.asarray(made["members"]) > 1
    kept_row &= np.asarray(made["spread"]) > threshold
    kept = made.filter(pa.array(kept_row))
    groups = sorted(set(kept["group_id"].to_pylist()))
    if not duplicate or not groups:
        return kept
    left_out = sorted(set(made.filter(pa.array(~kept_row))["group_id"].to_pylist()))
    drawn = [groups[int(hashlib.sha256(name.encode()).hexdigest(), 16) % len(groups)] for name in left_out]
    ids = kept["group_id"].to_pylist()
    copies = [row for name in drawn for row, group in enumerate(ids) if group == name]
    return pa.concat_tables([kept, kept.take(pa.array(copies, pa.int64()))])
