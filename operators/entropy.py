"""Entropy bonuses: per-token losses that keep the policy from becoming deterministic too early."""

import torch
from torch import Tensor

from ouroboros.pipeline.settings.arguments.terms import Entropy

ENTROPY = Entropy()


def default(entropy: Tensor, entropy_coef=ENTROPY.entropy_coef) -> Tensor:
    """-entropy_coef H, [N], added to the policy loss (Mnih et al. 2016, arXiv:1602.01783).

    Also Williams & Peng 1991. entropy: H of the whole next-token distribution at each action token, nats, with
    gradient. Assumes a fixed prefix: a token gets no credit for later uncertainty. A negative coefficient makes the
    policy more deterministic; with 0, the default, the entropy is only reported.
    """
    return -entropy_coef * entropy


def mix(entropy: Tensor, is_expert: Tensor, entropy_coef=ENTROPY.entropy_coef) -> Tensor:
    """`default` on rollouts of a mixed batch, 0 on demonstrations (of Trinity-RFT, no paper).

    Assumes that entropy is worth keeping only in the policy's own states. Without demonstrations it is `default`,
    without rollouts 0.
    """
    return torch.where(is_expert, torch.zeros_like(entropy), -entropy_coef * entropy)


def none(logprobs: Tensor) -> Tensor:
    """0, as `default` with coefficient 0, but without an entropy gradient in memory (no paper).

    The entropy is still reported. Assumes that the policy keeps exploring without a bonus.
    """
    return torch.zeros_like(logprobs)


ENTROPY_LOSSES = {"default": default, "mix": mix, "none": none}
