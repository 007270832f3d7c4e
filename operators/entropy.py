"""The entropy bonus: a loss of each token that keeps the policy from becoming certain too early."""

import torch
from torch import Tensor

from pipeline.settings.arguments.terms import Entropy

ENTROPY = Entropy()


def default(entropy: Tensor, entropy_coef=ENTROPY.entropy_coef) -> Tensor:
    """-entropy_coef H, [N], added to the policy loss (Williams & Peng 1991; Mnih et al. 2016, arXiv:1602.01783).

    entropy: H of the whole next-token distribution at each action token, nats, with gradient. Assumes the prefix as
    given: no token is credited for the uncertainty behind it. A negative coefficient makes the policy more certain; 0,
    the default, leaves the entropy to be reported alone.
    """
    return -entropy_coef * entropy


def mix(entropy: Tensor, is_expert: Tensor, entropy_coef=ENTROPY.entropy_coef) -> Tensor:
    """`default` on the rollouts of a mixed batch: -entropy_coef H there, 0 on expert rows (of Trinity-RFT, no paper).

    Assumes that uncertainty is worth keeping only at states that are the policy's own. Without expert rows it is
    `default`, without rollouts 0.
    """
    return torch.where(is_expert, torch.zeros_like(entropy), -entropy_coef * entropy)


def none(logprobs: Tensor) -> Tensor:
    """0, as `default` with coefficient 0: no gradient through the entropy is kept; it is still reported (no paper).

    Assumes that the policy keeps exploring without being paid for it. 0 whatever the entropy is.
    """
    return torch.zeros_like(logprobs)


ENTROPY_LOSSES = {"default": default, "mix": mix, "none": none}
