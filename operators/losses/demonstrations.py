"""Losses of demonstrated tokens: the negative log-likelihood, and two likelihood-weighted variants."""

from __future__ import annotations

import math

from pydantic import Field

from ouroboros.operators.losses.ratio import Losses
from ouroboros.pipeline.settings.arguments.base import Loss
from ouroboros.pipeline.store.lazy import Tensor


class Sft(Loss):
    """Negative log-likelihood of the given tokens.

    -log p (Ouyang et al. 2022, arXiv:2203.02155). Assumes that every token is worth learning. Never negative; 0,
    without gradient, for a token of probability 1, and unbounded as its probability goes to 0.
    """
    types = (("sft", "demonstrations"), ("cpt", "texts"))

    def __call__(self, logprobs: Tensor) -> Losses:
        return -logprobs, {}


class SftIs(Loss):
    """Likelihood weighted by the token's probability (dynamic fine-tuning).

    -p log p, p constant (Wu et al. 2025, arXiv:2508.05629). The gradient is -grad p, without the factor 1 / p for
    unlikely tokens. Assumes that the policy already knows most of the demonstrations: a token of probability 0 is never
    learnt; one of probability 1 has loss 0.
    """

    def __call__(self, logprobs: Tensor) -> Losses:
        return -logprobs * logprobs.detach().exp(), {}


class SftPhi(Loss):
    """Likelihood weighted by p (1 - p), CHORD's token weights.

    -p (1 - p) min(log p, log cutoff), p constant (Zhang et al. 2025, arXiv:2508.11408). Tokens with a probability near
    0 or 1 have the lowest weight; 1/2 has the highest. Tokens already more likely than cutoff_prob < 1 have no effect.
    Assumes, as sft_is, that the policy knows most of the demonstrations: at p = 0, as at p = 1, there is no gradient.
    """
    cutoff_prob: float = Field(1.0, gt=0, le=1, description="probability above which tokens teach nothing")

    def __call__(self, logprobs: Tensor) -> Losses:
        probability = logprobs.detach().exp()
        held = logprobs.clamp(max=math.log(self.cutoff_prob)) if self.cutoff_prob < 1 else logprobs
        return -held * probability * (1.0 - probability), {}
