"""Policy losses: pure functions over flat vectors of action tokens.

Every function takes [N] tensors, one entry per action token of a micro-batch, and returns the loss of each token [N]
and a dict of [N] statistics. Its parameters without a default name the columns that it needs (operators/arguments.py),
the others are the user's. How tokens are weighted into one number is not decided here: the learner multiplies by
weights that are fixed over the whole train batch, so the result depends neither on micro-batches nor on ranks.
"""

import torch
from torch import Tensor


def sft(logprobs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Negative log-likelihood of the demonstrated tokens: -log p."""
    return -logprobs, {}


def ppo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    clip_range_low: float = 0.2,
    clip_range_high: float = 0.2,
    clip_ratio_c: float = 3.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped surrogate (Schulman et al. 2017, arXiv:1707.06347, eq. 7) with the dual clip of Ye et al. 2020.

    ratio = exp(clamp(logprobs - old_logprobs, -20, 20))
    loss  = max(-A ratio, -A clip(ratio, 1 - low, 1 + high)), and where A < 0 at most -A clip_ratio_c.

    clip_range_high > clip_range_low is DAPO's clip-higher (Yu et al. 2025, arXiv:2503.14476). old_logprobs are those
    of the policy that sampled; the clamp keeps the exponential finite when a token has become impossible.
    Statistics: clip_fraction (1 where the clipped term is the larger), kl (k3 estimate of KL(old || new) in nats,
    ratio - 1 - log ratio, Schulman 2020; non-negative).
    """
    log_ratio = (logprobs - old_logprobs).clamp(-20.0, 20.0)
    ratio = log_ratio.exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_range_low, 1.0 + clip_range_high)
    pessimistic = torch.maximum(unclipped, clipped)
    bounded = torch.minimum(pessimistic, -advantages * clip_ratio_c)
    loss = torch.where(advantages < 0, bounded, pessimistic)
    statistics = {"clip_fraction": (clipped > unclipped).to(logprobs.dtype), "kl": ratio - 1.0 - log_ratio}
    return loss, {name: value.detach() for name, value in statistics.items()}


POLICY_LOSSES = {
    "ppo": ppo,
    "sft": sft,
}

# how the tokens of a loss are averaged where its objective is not the mean over tokens (operators/aggregation.py)
NATURAL_AGGREGATION: dict[str, str] = {}
