"""GRPO without the failures whose tokens would take most of the policy's entropy."""

from __future__ import annotations

from pydantic import Field

from ouroboros.operators.advantages.action_tokens import Tokens, action_tokens
from ouroboros.operators.advantages.group import Grouped, Grpo
from ouroboros.pipeline.store.lazy import np, pa


class Clipb(Grouped):
    """GRPO, and 0 on tokens of failures that would lower the entropy most.

    Clip_B (Wang et al. 2026, arXiv:2602.03392), as Trinity-RFT's clipb. S = p (H + log p) of each action token, p its
    probability and H the entropy of its distribution, both before the step: to first order a step that makes the token
    likelier changes H by -S, so a failure with S < 0 lowers it. A is grpo's, and 0 where A < 0 and S - mean S < -mu
    std S, mean and population std over all action tokens of the batch. Assumes that entropy is worth keeping; averages
    still divide by all tokens. Equal S leave grpo; equal rewards, or a group of one, give 0.
    """
    reads = ("entropies",)
    epsilon: float = Field(1e-6, gt=0, description="constant added to the standard deviation of rewards")
    mu: float = Field(2.5, ge=0, description="standard deviations of S below its mean beyond which failures teach "
                                             "nothing")

    def __call__(self, batch: pa.Table) -> pa.Table:
        tokens, found = action_tokens(batch), Grpo(epsilon=self.epsilon)(batch)
        of_rows = dict(zip(found["experience_id"].to_pylist(), found["advantage"].to_pylist(), strict=True))
        made = np.array([of_rows[id_] for id_ in batch["experience_id"].to_pylist()])[tokens.rows]
        logprobs = tokens.take(batch, "old_logprobs")
        scores = np.exp(logprobs) * (tokens.take(batch, "entropies") + logprobs)
        kept = (made >= 0) | self._kept(scores, made, batch, tokens)
        return pa.table({"experience_id": batch["experience_id"], "advantage": tokens.lists(np.where(kept, made, 0.0))})

    def _kept(self, scores: np.ndarray, made: np.ndarray, batch: pa.Table, tokens: Tokens) -> np.ndarray:
        """[N] which action tokens teach where their advantage, `made`, is negative."""
        low = scores.mean() - self.mu * scores.std() if len(scores) else 0.0
        return (scores >= low) | np.isclose(scores, low, rtol=0, atol=1e-12)
