"""Losses that hold back the few tokens by which a policy loses its entropy (Cui et al. 2025, arXiv:2505.22617).

They are those of large (A - mean A) (log pi - mean log pi), over all tokens of the batch: likely ones with a high
advantage, and unlikely ones with a low one. `chosen` says which, where the caller knows more of the batch than is given
here (operators/selection.py); without it they are chosen among the given tokens.
"""

import torch
from torch import Tensor

from ouroboros.operators.losses.ratio import clip_bounds, log_ratio, statistics
from ouroboros.pipeline.settings.arguments.losses import ClipCov, KlCov

CLIP, KL = ClipCov(), KlCov()

Loss = tuple[Tensor, dict[str, Tensor]]


def clip_cov(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip_range=CLIP.clip_range,
             clip_range_low=CLIP.clip_range_low, clip_range_high=CLIP.clip_range_high,
             clip_cov_ratio=CLIP.clip_cov_ratio, clip_cov_lb=CLIP.clip_cov_lb, clip_cov_ub=CLIP.clip_cov_ub,
             chosen: Tensor | None = None) -> Loss:
    """Clip-Cov (arXiv:2505.22617, eq. 12): loss = max(-A ratio, -A clip(ratio, 1 - low, 1 + high)), 0 on some tokens.

    Of the tokens that the clip leaves and whose covariance lies between clip_cov_lb and clip_cov_ub, max(1, floor of
    clip_cov_ratio N) are drawn, and teach nothing: always the same ones of a batch. Assumes, as ppo, a close policy,
    and advantages of about unit size. Without tokens between the bounds it is ppo without the dual clip; A = 0 gives 0.
    """
    ratio = log_ratio(logprobs, old_logprobs).exp()
    bounds = clip_bounds(clip_range, clip_range_low, clip_range_high)
    free, clipped = -advantages * ratio, -advantages * ratio.clamp(*bounds)
    if chosen is None:
        chosen = drawn(logprobs, old_logprobs, advantages, clip_range, clip_range_low, clip_range_high, clip_cov_ratio,
                       clip_cov_lb, clip_cov_ub)
    loss = torch.where(chosen > 0, torch.zeros_like(free), torch.maximum(free, clipped))
    return loss, statistics(logprobs, old_logprobs, clipped > free, covariance_chosen=(chosen > 0).to(loss.dtype))


def drawn(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip_range=CLIP.clip_range,
          clip_range_low=CLIP.clip_range_low, clip_range_high=CLIP.clip_range_high, clip_cov_ratio=CLIP.clip_cov_ratio,
          clip_cov_lb=CLIP.clip_cov_lb, clip_cov_ub=CLIP.clip_cov_ub) -> Tensor:
    """The tokens that clip_cov leaves out among the given ones, bool [N]: drawn by a hash of their covariance."""
    ratio = log_ratio(logprobs.detach(), old_logprobs).exp()
    low, high = clip_bounds(clip_range, clip_range_low, clip_range_high)
    clipped = torch.where(advantages > 0, ratio > high, (ratio < low) & (advantages < 0))
    found = covariance(logprobs, advantages)
    between = torch.nonzero((found > clip_cov_lb) & (found < clip_cov_ub) & ~clipped).flatten()
    count = max(int(clip_cov_ratio * len(found)), 1)
    bits = found[between].double().view(torch.int64)
    order = torch.argsort((bits ^ (bits >> 32)) * 2654435761 & 0xFFFFFFFF, stable=True)  # Knuth's multiplicative hash
    chosen = torch.zeros(len(found), dtype=torch.bool, device=found.device)
    chosen[between[order[:count]]] = True
    return chosen


def kl_cov(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, kl_cov_ratio=KL.kl_cov_ratio,
           ppo_kl_coef=KL.ppo_kl_coef, chosen: Tensor | None = None) -> Loss:
    """KL-Cov (arXiv:2505.22617, eq. 14): loss = -A ratio, + ppo_kl_coef |log ratio| on some tokens.

    They are the max(1, floor of kl_cov_ratio N) of the largest covariance. Assumes, as ppo, a close policy: nothing is
    clipped. At ratio 1 the term is 0 and has no gradient, so it acts on stale rows and in later passes over a batch.
    A = 0 leaves the term.
    """
    change = log_ratio(logprobs, old_logprobs)
    chosen = highest(logprobs, advantages, kl_cov_ratio) if chosen is None else chosen > 0
    loss = -advantages * change.exp() + torch.where(chosen, ppo_kl_coef * change.abs(), torch.zeros_like(change))
    held = chosen.to(loss.dtype)
    return loss, statistics(logprobs, old_logprobs, torch.zeros_like(held), covariance_chosen=held)


def highest(logprobs: Tensor, advantages: Tensor, kl_cov_ratio=KL.kl_cov_ratio) -> Tensor:
    """The tokens of the largest covariance among the given ones, bool [N]."""
    found = covariance(logprobs, advantages)
    chosen = torch.zeros(len(found), dtype=torch.bool, device=found.device)
    count = max(int(kl_cov_ratio * len(found)), 1)
    chosen[found.argsort(descending=True, stable=True)[:count]] = True
    return chosen


def covariance(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """(A - mean A) (log pi - mean log pi) of each token, over the given ones, [N] without gradient."""
    held = logprobs.detach()
    return (advantages - advantages.mean()) * (held - held.mean())
