"""Losses of demonstrated tokens: the negative log-likelihood, and two likelihood-weighted variants."""

import math

from torch import Tensor

from ouroboros.pipeline.settings.arguments.losses import SftPhi

SFT_PHI = SftPhi()

Loss = tuple[Tensor, dict[str, Tensor]]


def sft(logprobs: Tensor) -> Loss:
    """Negative log-likelihood of the demonstrated tokens: -log p (Ouyang et al. 2022, arXiv:2203.02155).

    Assumes that every token is worth learning. Never negative; 0, without gradient, for a token of probability 1, and
    unbounded as its probability goes to 0.
    """
    return -logprobs, {}


def sft_is(logprobs: Tensor) -> Loss:
    """Dynamic fine-tuning: -p log p, p constant (Wu et al. 2025, arXiv:2508.05629).

    An importance-weighted likelihood. The gradient is -grad p, without the factor 1 / p for unlikely tokens. Assumes
    that the policy already knows most of the demonstrations: a token of probability 0 is never learnt; one of
    probability 1 has loss 0.
    """
    return -logprobs * logprobs.detach().exp(), {}


def sft_phi(logprobs: Tensor, cutoff_prob: float = SFT_PHI.cutoff_prob) -> Loss:
    """CHORD's token weights: -p (1 - p) min(log p, log cutoff), p constant (arXiv:2508.11408).

    Zhang et al. 2025. Tokens with a probability near 0 or 1 have the lowest weight; 1/2 has the highest. Tokens already
    more likely than cutoff_prob < 1 have no effect. Assumes, as sft_is, that the policy knows most of the
    demonstrations: at p = 0, as at p = 1, there is no gradient.
    """
    probability = logprobs.detach().exp()
    held = logprobs.clamp(max=math.log(cutoff_prob)) if cutoff_prob < 1 else logprobs
    return -held * probability * (1.0 - probability), {}
