"""An advantage whose baseline has the least variance where the gradient of a response grows with its length."""

from __future__ import annotations

from ouroboros.operators.advantages.action_tokens import action_tokens
from ouroboros.operators.advantages.group import Grouped
from ouroboros.operators.advantages.query import require, require_finite
from ouroboros.pipeline.store.lazy import np, pa


class Opo(Grouped):
    """On-policy RL with the optimal baseline: the reward less the mean of the group, weighted by length.

    arXiv:2505.23585 (2025), as veRL's opo. A = r - b, b = sum of l r / sum of l over the attempts of the group, l the
    number of their action tokens: the baseline of least variance where the squared gradient of a response grows with
    its length, as that of independent tokens does. Assumes rollouts of the policy itself. Attempts of equal length:
    dr_grpo. Equal rewards give 0; a group of one has b = 0: A = r.
    """

    def __call__(self, batch: pa.Table) -> pa.Table:
        require(batch, "group_id")
        require_finite(batch, "reward")
        tokens = action_tokens(batch)
        last = tokens.attempts.last
        groups, first, of = np.unique(batch["group_id"].to_numpy()[last], return_index=True, return_inverse=True)
        rewards = batch["reward"].to_numpy()[last]
        gaps = rewards - rewards[first][of]  # so that equal rewards are exactly 0
        weights = np.maximum(np.bincount(of, tokens.counts, len(groups)), 1)
        baselines = np.bincount(of, tokens.counts * gaps, len(groups)) / weights
        made = np.where(np.bincount(of, minlength=len(groups))[of] == 1, rewards, gaps - baselines[of])
        return pa.table({"experience_id": batch["experience_id"], "advantage": made[tokens.attempts.of]})
