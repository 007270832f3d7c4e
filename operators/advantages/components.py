"""Advantages of the components of a reward, each compared by itself: its name -> number, in `reward_components`."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ouroboros.operators.advantages.action_tokens import Tokens, action_tokens, whiten
from ouroboros.operators.advantages.query import require
from ouroboros.pipeline.settings.arguments.advantages import Gdpo
from ouroboros.pipeline.store.errors import DataError

GDPO = Gdpo()


def gdpo(batch: pa.Table, gdpo_reward_keys=GDPO.gdpo_reward_keys, gdpo_reward_weights=GDPO.gdpo_reward_weights,
         epsilon=GDPO.epsilon, norm_adv_by_std_in_grpo=GDPO.norm_adv_by_std_in_grpo, level=GDPO.level) -> pa.Table:
    """Group reward-decoupled normalisation (Liu et al. 2026, arXiv:2601.05242).

    x = sum_k w_k (r_k - mean_group) / (std_group + epsilon) over the components k of the reward, std unbiased, then
    A = (x - mean) / sqrt(var + 1e-8), mean and unbiased var over all action tokens of the batch; level sequence: (x -
    mean) / (std + epsilon) over its attempts, as TRL's normalize_then_sum. Sums of rewards that differ by component
    stay apart, where grpo gives equal sums one advantage. Assumes that a component means the same in every row,
    and that more of each is better: 1 for right and 0.1 for the form of a wrong answer alone would cancel.
    norm_adv_by_std_in_grpo false: no division in the group. Degenerate: a component of equal values in a group, or a
    group of one, adds 0; where that holds of all, A is -mean / std, and 0 if x is 0 throughout.
    """
    require(batch, "group_id", "reward_components")
    tokens = action_tokens(batch)
    last = tokens.attempts.last
    values = _matrix(batch.take(pa.array(last)), gdpo_reward_keys)
    groups = np.unique(batch["group_id"].to_numpy()[last], return_inverse=True)[1]
    normed = np.array([_within(column, groups, epsilon if norm_adv_by_std_in_grpo else None) for column in values.T])
    normed = normed.reshape(values.shape[::-1])  # a batch without rows has no components
    weights = np.ones(len(normed)) if gdpo_reward_weights is None else np.asarray(gdpo_reward_weights, np.float64)
    return pa.table({"experience_id": batch["experience_id"],
                     "advantage": tokens.lists(_whitened(weights @ normed, tokens, level, epsilon))})


def _whitened(sums: np.ndarray, tokens: Tokens, level: str, epsilon: float) -> np.ndarray:
    """[N] of the action tokens. sums: of each attempt, [A]."""
    if level == "token":
        return whiten(sums[tokens.owners])
    spread = sums.std(ddof=1) if len(sums) > 1 else 0.0
    return ((sums - sums.mean()) / (spread + epsilon))[tokens.owners]


def _within(values: np.ndarray, groups: np.ndarray, epsilon: float | None) -> np.ndarray:
    """Values [A] less the mean of their group, over its std + epsilon; None: undivided."""
    made = np.zeros(len(values))
    for group in range(groups.max(initial=-1) + 1):
        inside = groups == group
        own = values[inside]
        if own.min() < own.max():  # else exactly 0: in binary the mean of three times 0.1 is not 0.1
            made[inside] = (own - own.mean()) / (1.0 if epsilon is None else own.std(ddof=1) + epsilon)
    return made


def _matrix(rows: pa.Table, keys: Sequence[str] | None) -> np.ndarray:
    """[A, K] the components of each attempt. Raises DataError for one that an attempt lacks, or that is not finite."""
    found = [dict(pairs) for pairs in rows["reward_components"].to_pylist()]
    keys = sorted(set().union(*found)) if keys is None else keys
    if found and not keys:
        raise DataError("algorithm.advantage_fn=gdpo compares the components of rewards, and no row of the batch has "
                        "any.")
    for id_, one in zip(rows["experience_id"].to_pylist(), found, strict=True):
        if lacking := [key for key in keys if not np.isfinite(one.get(key, np.nan))]:
            raise DataError(f"algorithm.advantage_fn=gdpo: row {id_} has no finite component '{lacking[0]}' of the "
                            f"reward; it has {', '.join(one) or 'none'}. Name those that every row has in algorithm."
                            "advantage_fn_args.gdpo_reward_keys.")
    return np.array([[one[key] for key in keys] for one in found], np.float64).reshape(len(found), len(keys))
