"""Losses of demonstrated tokens: the negative log-likelihood, and two likelihood-weighted variants."""

import math

from torch import Tensor

from pipeline.settings.arguments.losses import SftPhi

SFT_PHI = SftPhi()

Loss = tuple[Tensor, dict[str, Tensor]]


def sft(logprobs: Tensor) -> Loss:
    """Negative log-likelihood of the demonstrated tokens: -log p (Ouyang et al. 2022, arXiv:2203.02155).

    Assumes that each of them is worth learning. Never negative; 0, without gradient, for a token of probability 1, and
    of any size for one that the policy deems impossible.
    """
    return -logprobs, {}


def sft_is(logprobs: Tensor) -> Loss:
    """Importance-weighted likelihood, dynamic fine-tuning (Wu et al. 2025, arXiv:2508.05629): -p log p, p constant.

    The gradient is -grad p: an unlikely token no longer pulls with 1 / p. Assumes that the policy knows most of what is
    shown: a token of probability 0 is never learnt; one of probability 1 has loss 0.
    """
    return -logprobs * logprobs.detach().exp(), {}


def sft_phi(logprobs: Tensor, cutoff_prob: float = SFT_PHI.cutoff_prob) -> Loss:
    """CHORD's token weights (Zhang et al. 2025, arXiv:2508.11408): -p (1 - p) min(log p, log cutoff), p constant.

    Tokens that the policy is sure of, or has no idea of, pull least; 1/2 pulls most. cutoff_prob < 1: tokens already
    likelier than that teach nothing. Assumes, as sft_is, that what is shown is not wholly foreign: at p = 0, as at
    p = 1, there is no gradient.
    """
    probability = logprobs.detach().exp()
    held = logprobs.clamp(max=math.log(cutoff_prob)) if cutoff_prob < 1 else logprobs
    return -held * probability * (1.0 - probability), {}
