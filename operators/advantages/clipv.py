"""GRPO without the failures that stand out by how far their tokens would lower the policy's entropy."""

from __future__ import annotations

from pydantic import Field

from ouroboros.operators.advantages.action_tokens import Tokens
from ouroboros.operators.advantages.clipb import Clipb
from ouroboros.pipeline.store.lazy import np, pa


class Clipv(Clipb):
    """GRPO, and 0 on tokens of failures whose change of the entropy is an outlier.

    Clip_V (Wang et al. 2026, arXiv:2602.03392), as Trinity-RFT's clipv. D = E[S] - S, S as in clipb and E its mean over
    the distribution of the token before the step: to first order a step that makes the token likelier changes the
    entropy by D, so a failure with D > 0 lowers it. A is grpo's, and 0 where A < 0 and D > mu std D, population std
    over all action tokens of the batch, of at most the share max_frac of them (at least one), the largest D. The bound
    is not centred: it assumes rollouts of the policy itself, under which the mean of D is 0. Averages still divide by
    all tokens. D = 0 everywhere leaves grpo; equal rewards, or a group of one, give 0.
    """
    reads = ("entropies", "mean_scores")
    mu: float = Field(8.5, ge=0, description="standard deviations of D beyond which failures teach nothing")
    max_frac: float = Field(1e-4, ge=0, le=1, description="largest share of the tokens that teach nothing, at least "
                                                          "one token")

    def _kept(self, scores: np.ndarray, made: np.ndarray, batch: pa.Table, tokens: Tokens) -> np.ndarray:
        changes = tokens.take(batch, "mean_scores") - scores
        out = np.flatnonzero((made < 0) & (changes > self.mu * changes.std())) if len(changes) else []
        most = max(int(self.max_frac * len(changes)), 1)
        kept = np.ones(len(changes), bool)
        kept[sorted(out, key=lambda place: -changes[place])[:most]] = False
        return kept
