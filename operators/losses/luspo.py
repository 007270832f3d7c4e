"""GSPO without its bias towards short responses: a response weighs as many tokens as it has."""

from __future__ import annotations

from pydantic import Field

from ouroboros.operators.losses.clipped import Gspo


class Luspo(Gspo):
    """Length-unbiased sequence policy optimisation: GSPO whose responses weigh by their length.

    arXiv:2602.05261 (2026), as TRL's loss_type luspo. Mean over responses of -|y| min(A s, A clip(s, 1 - low, 1 +
    high)), s and A as in gspo, |y| the number of action tokens: each token has the loss of gspo, and the
    seq-mean-token-sum average adds them up, so that the gradient of a token is not divided by the length of its
    response. The bounds are the paper's, section 5.1. Assumes, as gspo, one advantage per response, and responses of
    bounded length: the step grows with it. Responses of equal length: |y| times gspo; A = 0 gives 0.
    """
    aggregation = "seq-mean-token-sum"
    clip_range_low: float = Field(2e-3, ge=0, le=1, description="the ratio is clipped at 1 - this")
    clip_range_high: float = Field(2.5e-3, ge=0, description="the ratio is clipped at 1 + this")
