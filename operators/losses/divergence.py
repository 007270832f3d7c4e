"""Losses whose trust region is a divergence of the two policies at a token, not their ratio there.

A ratio bounds likely tokens loosely and unlikely ones tightly: from 1e-5 to 1e-3 it is 100, though next to nothing has
changed. The divergence is that of two distributions over the sampled token and all others together.
"""

import torch
from torch import Tensor

from ouroboros.operators.losses.ratio import log_ratio, statistics
from ouroboros.pipeline.settings.arguments.losses import DppoKl, DppoTv

TV, KL = DppoTv(), DppoKl()
TINY = 1e-8  # added to the probability of the other tokens

Loss = tuple[Tensor, dict[str, Tensor]]


def dppo_tv(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip_range=TV.clip_range,
            clip_range_low=TV.clip_range_low, clip_range_high=TV.clip_range_high, clip_ratio_c=TV.clip_ratio_c) -> Loss:
    """Divergence PPO by total variation (arXiv:2602.04879, 2026): loss = -A min(ratio, clip_ratio_c) M log pi.

    M = 1 where A > 0 and p - p_old <= high, or A <= 0 and p - p_old >= -low, else 0: tokens that have moved too far in
    the direction of A teach nothing. |p - p_old| is the total variation of the binary distributions. The ratio, cut at
    clip_ratio_c, and M have no gradient. Assumes, as ppo, a close policy. At ratio 1 it is REINFORCE; A = 0 gives 0.
    """
    moved = _probability(logprobs) - _probability(old_logprobs)
    low, high = _bounds(clip_range, clip_range_low, clip_range_high)
    kept = torch.where(advantages > 0, moved <= high, moved >= -low)
    return _weighted(logprobs, old_logprobs, advantages, kept, clip_ratio_c)


def dppo_kl(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip_range=KL.clip_range,
            clip_range_low=KL.clip_range_low, clip_range_high=KL.clip_range_high, clip_ratio_c=KL.clip_ratio_c) -> Loss:
    """Divergence PPO by KL (arXiv:2602.04879, 2026): loss = -A min(ratio, clip_ratio_c) M log pi.

    M = 0 where A > 0, p > p_old and KL > high, or A <= 0, p < p_old and KL > low, else 1; KL = p_old log(p_old / p) +
    (1 - p_old) log((1 - p_old) / (1 - p)) in nats, 1e-8 added to both 1 - p. The ratio, cut at clip_ratio_c, and M have
    no gradient. Assumes, as ppo, a close policy. At ratio 1 it is REINFORCE; A = 0 gives 0.
    """
    new, old = _probability(logprobs), _probability(old_logprobs)
    rest = (1.0 - old) * ((1.0 - old + TINY) / (1.0 - new + TINY)).log()
    divergence = rest - old * log_ratio(logprobs.detach(), old_logprobs)
    low, high = _bounds(clip_range, clip_range_low, clip_range_high)
    kept = torch.where(advantages > 0, (divergence <= high) | (new <= old), (divergence <= low) | (new >= old))
    return _weighted(logprobs, old_logprobs, advantages, kept, clip_ratio_c)


def _probability(logprobs: Tensor) -> Tensor:
    """[N] without gradient."""
    return logprobs.detach().clamp(max=0.0).exp()


def _bounds(both: float, low: float | None, high: float | None) -> tuple[float, float]:
    return both if low is None else low, both if high is None else high


def _weighted(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, kept: Tensor, most: float) -> Loss:
    """kept: [N] where M = 1. clip_fraction is where it is 0; cut_fraction where the ratio of a kept token was cut."""
    ratio = log_ratio(logprobs, old_logprobs).detach().exp()
    loss = -advantages * torch.where(kept, ratio.clamp(max=most), torch.zeros_like(ratio)) * logprobs
    cut = (kept & (ratio > most)).to(ratio.dtype)
    return loss, statistics(logprobs, old_logprobs, ~kept, cut_fraction=cut)
