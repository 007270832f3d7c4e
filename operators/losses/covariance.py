"""Losses that hold back the few tokens by which a policy loses its entropy (Cui et al. 2025, arXiv:2505.22617).

They are those of large (A - mean A) (log pi - mean log pi), over all tokens of the batch: likely ones with a high
advantage, and unlikely ones with a low one. `chosen` says which, where the caller knows more of the batch than is given
here (operators/selection.py); without it they are chosen among the given tokens.
"""

from __future__ import annotations

from pydantic import Field

from ouroboros.operators.losses.ratio import Clip, Losses, log_ratio, statistics
from ouroboros.pipeline.settings.arguments.base import Loss
from ouroboros.pipeline.store.lazy import Tensor, torch


class ClipCov(Clip):
    """PPO's clip, and no gradient on some tokens of large covariance of advantage and log-prob.

    Cui et al. 2025, arXiv:2505.22617, eq. 12. loss = max(-A ratio, -A clip(ratio, 1 - low, 1 + high)), 0 on some
    tokens. Of the tokens that the clip leaves and whose covariance lies between clip_cov_lb and clip_cov_ub, max(1,
    floor of clip_cov_ratio N) are drawn, and teach nothing: always the same ones of a batch. Assumes, as ppo, a close
    policy, and advantages of about unit size. Without tokens between the bounds it is ppo without the dual clip; A = 0
    gives 0.
    """
    chooses_tokens = True
    clip_cov_ratio: float = Field(2e-4, gt=0, le=1, description="tokens that are left out, as a share of the batch's; "
                                                                "one at least")
    clip_cov_lb: float = Field(1.0, description="only tokens of a covariance above this are left out")
    clip_cov_ub: float = Field(5.0, description="only tokens of a covariance below this are left out")

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor,
                 chosen: Tensor | None = None) -> Losses:
        ratio = log_ratio(logprobs, old_logprobs).exp()
        free, clipped = -advantages * ratio, -advantages * ratio.clamp(*self.bounds)
        out = self.choose(logprobs, old_logprobs, advantages) if chosen is None else chosen > 0
        loss = torch.where(out, torch.zeros_like(free), torch.maximum(free, clipped))
        return loss, statistics(logprobs, old_logprobs, clipped > free, covariance_chosen=out.to(loss.dtype))

    def choose(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Tensor:
        """The tokens that are left out among the given ones, bool [N]: drawn by a hash of their covariance."""
        ratio = log_ratio(logprobs.detach(), old_logprobs).exp()
        low, high = self.bounds
        clipped = torch.where(advantages > 0, ratio > high, (ratio < low) & (advantages < 0))
        found = covariance(logprobs, advantages)
        between = torch.nonzero((found > self.clip_cov_lb) & (found < self.clip_cov_ub) & ~clipped).flatten()
        bits = found[between].double().view(torch.int64)
        hashed = (bits ^ (bits >> 32)) * 2654435761 & 0xFFFFFFFF  # Knuth's multiplicative hash
        return _first(found, between[torch.argsort(hashed, stable=True)], self.clip_cov_ratio)


class KlCov(Loss):
    """The unclipped surrogate, with a KL to the sampling policy on the tokens of the largest covariance.

    Cui et al. 2025, arXiv:2505.22617, eq. 14. loss = -A ratio, + ppo_kl_coef |log ratio| on some tokens: the max(1,
    floor of kl_cov_ratio N) of the largest covariance. Assumes, as ppo, a close policy: nothing is clipped. At ratio 1
    the term is 0 and has no gradient, so it acts on stale rows and in later passes over a batch. A = 0 leaves the term.
    """
    chooses_tokens = True
    kl_cov_ratio: float = Field(2e-4, gt=0, le=1, description="tokens with the KL term, as a share of the batch's; one "
                                                              "at least")
    ppo_kl_coef: float = Field(1.0, ge=0, description="weight of the KL term")

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor,
                 chosen: Tensor | None = None) -> Losses:
        change = log_ratio(logprobs, old_logprobs)
        held = self.choose(logprobs, advantages) if chosen is None else chosen > 0
        term = torch.where(held, self.ppo_kl_coef * change.abs(), torch.zeros_like(change))
        found = statistics(logprobs, old_logprobs, torch.zeros_like(held), covariance_chosen=held.to(change.dtype))
        return -advantages * change.exp() + term, found

    def choose(self, logprobs: Tensor, advantages: Tensor) -> Tensor:
        """The tokens of the largest covariance among the given ones, bool [N]."""
        found = covariance(logprobs, advantages)
        return _first(found, found.argsort(descending=True, stable=True), self.kl_cov_ratio)


def covariance(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """(A - mean A) (log pi - mean log pi) of each token, over the given ones, [N] without gradient."""
    held = logprobs.detach()
    return (advantages - advantages.mean()) * (held - held.mean())


def _first(found: Tensor, order: Tensor, share: float) -> Tensor:
    """True on the first of `order`, as many as a share of all tokens, one at least; bool [N]."""
    chosen = torch.zeros(len(found), dtype=torch.bool, device=found.device)
    chosen[order[:max(int(share * len(found)), 1)]] = True
    return chosen
