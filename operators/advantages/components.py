"""Advantages of the components of a reward, each compared by itself: its name -> number, in `reward_components`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from ouroboros.operators.advantages.action_tokens import Tokens, action_tokens, whiten
from ouroboros.operators.advantages.query import require
from ouroboros.pipeline.settings.arguments.base import Advantage
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.lazy import np, pa


class Gdpo(Advantage):
    """Group reward-decoupled normalisation: each component of the reward is compared by itself.

    Liu et al. 2026, arXiv:2601.05242. x = sum_k w_k (r_k - mean_group) / (std_group + epsilon) over the components k of
    the reward, std unbiased, then A = (x - mean) / sqrt(var + 1e-8), mean and unbiased var over all action tokens of
    the batch; level sequence: (x - mean) / (std + epsilon) over its attempts, as TRL's normalize_then_sum. Sums of
    rewards that differ by component stay apart, where grpo gives equal sums one advantage. Assumes that a component
    means the same in every row, and that more of each is better: 1 for right and 0.1 for the form of a wrong answer
    alone would cancel. norm_adv_by_std_in_grpo false: no division in the group. Degenerate: a component of equal values
    in a group, or a group of one, adds 0; where that holds of all, A is -mean / std, and 0 if x is 0 throughout.
    """
    compares_groups = True
    reads_components = True
    gdpo_reward_keys: list[str] | None = Field(None, min_length=1, description=(
        "components of the reward that are compared; null: all that the rows of the batch have"))
    gdpo_reward_weights: list[float] | None = Field(None, validate_default=True, description=(
        "weight of each of gdpo_reward_keys, in their order; null: 1 each"))
    epsilon: float = Field(1e-6, gt=0, description="constant added to the standard deviation")
    norm_adv_by_std_in_grpo: bool = Field(True, description="whether a component is divided by its standard deviation "
                                                            "in the group")
    level: Literal["token", "sequence"] = Field("token", description=(
        "what the sum is whitened over: action tokens, so that long responses count more, or responses"))

    @field_validator("gdpo_reward_weights")
    @classmethod
    def _one_each(cls, value: list[float] | None, info: ValidationInfo) -> list[float] | None:
        keys = info.data.get("gdpo_reward_keys")
        if value is not None and len(value) != len(keys or ()):
            raise ValueError(f"needed one for each of gdpo_reward_keys, {len(keys or ())}")
        if value is not None and not any(value):
            raise ValueError("every advantage would be 0; needed a weight other than 0")
        return value

    def __call__(self, batch: pa.Table) -> pa.Table:
        require(batch, "group_id", "reward_components")
        tokens = action_tokens(batch)
        last = tokens.attempts.last
        values = _matrix(batch.take(pa.array(last)), self.gdpo_reward_keys)
        groups = np.unique(batch["group_id"].to_numpy()[last], return_inverse=True)[1]
        scale = self.epsilon if self.norm_adv_by_std_in_grpo else None
        normed = np.array([_within(column, groups, scale) for column in values.T])
        normed = normed.reshape(values.shape[::-1])  # a batch without rows has no components
        given = self.gdpo_reward_weights
        weights = np.ones(len(normed)) if given is None else np.asarray(given, np.float64)
        return pa.table({"experience_id": batch["experience_id"],
                         "advantage": tokens.lists(_whitened(weights @ normed, tokens, self.level, self.epsilon))})


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
