"""Losses whose trust region is a divergence of the two policies at a token, not their ratio there.

A ratio bounds likely tokens loosely and unlikely ones tightly: from 1e-5 to 1e-3 it is 100, though next to nothing has
changed. The divergence is that of two distributions over the sampled token and all others together.
"""

from __future__ import annotations

from pydantic import Field

from ouroboros.operators.losses.ratio import Clip, Losses, log_ratio, statistics
from ouroboros.pipeline.store.lazy import Tensor, torch

TINY = 1e-8  # added to the probability of the other tokens


class Divergence(Clip):
    """The bounds of a divergence of the two policies at a token, each taken as sampled token or any other."""
    clip_ratio_c: float = Field(20.0, gt=1, description="largest weight of a token: the ratio is cut there")

    def weighted(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, kept: Tensor) -> Losses:
        """kept: [N] where M = 1. clip_fraction is where it is 0; cut_fraction where the ratio of a kept token was
        cut."""
        ratio, most = log_ratio(logprobs, old_logprobs).detach().exp(), self.clip_ratio_c
        loss = -advantages * torch.where(kept, ratio.clamp(max=most), torch.zeros_like(ratio)) * logprobs
        cut = (kept & (ratio > most)).to(ratio.dtype)
        return loss, statistics(logprobs, old_logprobs, ~kept, cut_fraction=cut)


class DppoTv(Divergence):
    """PPO with a bound on the total variation at each token in place of the ratio.

    Divergence PPO (arXiv:2602.04879, 2026): loss = -A min(ratio, clip_ratio_c) M log pi. M = 1 where A > 0 and p -
    p_old <= high, or A <= 0 and p - p_old >= -low, else 0: tokens that have moved too far in the direction of A teach
    nothing. |p - p_old| is the total variation of the binary distributions. The ratio, cut at clip_ratio_c, and M have
    no gradient. Assumes, as ppo, a close policy. At ratio 1 it is REINFORCE; A = 0 gives 0.
    """
    clip_range: float = Field(0.15, ge=0, le=1, description="largest change of a token's probability that still "
                                                            "teaches, unless they are set apart")
    clip_range_low: float | None = Field(None, ge=0, le=1, description="largest fall where A < 0; null: clip_range")
    clip_range_high: float | None = Field(None, ge=0, le=1, description="largest rise where A > 0; null: clip_range")

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Losses:
        moved = _probability(logprobs) - _probability(old_logprobs)
        low, high = self.ranges
        kept = torch.where(advantages > 0, moved <= high, moved >= -low)
        return self.weighted(logprobs, old_logprobs, advantages, kept)


class DppoKl(Divergence):
    """PPO with a bound on the KL divergence at each token in place of the ratio.

    Divergence PPO (arXiv:2602.04879, 2026): loss = -A min(ratio, clip_ratio_c) M log pi. M = 0 where A > 0, p > p_old
    and KL > high, or A <= 0, p < p_old and KL > low, else 1; KL = p_old log(p_old / p) + (1 - p_old) log((1 - p_old) /
    (1 - p)) in nats, 1e-8 added to both 1 - p. The ratio, cut at clip_ratio_c, and M have no gradient. Assumes, as ppo,
    a close policy. At ratio 1 it is REINFORCE; A = 0 gives 0.
    """
    clip_range: float = Field(0.05, ge=0, description="largest KL(sampling policy || policy) of a token, nats")
    clip_range_low: float | None = Field(None, ge=0, description="largest KL of a token where A < 0, nats; null: "
                                                                 "clip_range")
    clip_range_high: float | None = Field(None, ge=0, description="largest KL of a token where A > 0, nats; null: "
                                                                  "clip_range")

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Losses:
        new, old = _probability(logprobs), _probability(old_logprobs)
        rest = (1.0 - old) * ((1.0 - old + TINY) / (1.0 - new + TINY)).log()
        divergence = rest - old * log_ratio(logprobs.detach(), old_logprobs)
        low, high = self.ranges
        kept = torch.where(advantages > 0, (divergence <= high) | (new <= old), (divergence <= low) | (new >= old))
        return self.weighted(logprobs, old_logprobs, advantages, kept)


def _probability(logprobs: Tensor) -> Tensor:
    """[N] without gradient."""
    return logprobs.detach().clamp(max=0.0).exp()
