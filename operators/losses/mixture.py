"""Losses of batches that mix demonstrations (likelihood) and rollouts (PPO).

The two kinds are averaged separately (operators/aggregation.py, token_weights_by_kind), so

    total = (1 - mu) mean over rollouts of PPO + mu mean over demonstrations of SFT

for any share of demonstrations, micro-batches and ranks. A batch without one kind lacks its term.
"""

from __future__ import annotations

import math

from pydantic import Field

from ouroboros.operators.losses.clipped import DualClip, Ppo
from ouroboros.operators.losses.demonstrations import SftPhi
from ouroboros.operators.losses.ratio import Losses
from ouroboros.pipeline.store.lazy import Tensor, torch


class Mixture(DualClip):
    """PPO on rollouts, and an imitation of demonstrations."""

    def mixed(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, rows: Tensor, is_expert: Tensor,
              mu: float, imitation: Tensor) -> Losses:
        """PPO statistics on rollouts, sft_loss (before mu) and mu on demonstrations; 0 on the other kind."""
        zero = torch.zeros_like(logprobs)
        old = torch.where(is_expert, logprobs.detach(), old_logprobs)
        ppo = Ppo(**{name: getattr(self, name) for name in DualClip.model_fields})
        reinforced, found = ppo(logprobs, old, torch.where(is_expert, zero, advantages), rows)
        apart = {name: torch.where(is_expert, zero, value) for name, value in found.items()}
        apart["sft_loss"] = torch.where(is_expert, imitation.detach(), zero)
        apart["mu"] = mu * is_expert.to(logprobs.dtype)
        return torch.where(is_expert, mu * imitation, (1.0 - mu) * reinforced), apart


class Mix(Mixture):
    """PPO on rollouts with the likelihood of expert rows, in a fixed share.

    Zhang et al. 2025, arXiv:2508.11408, with a fixed mu. loss = (1 - mu) PPO on rollouts, mu (-log p) on
    demonstrations. Assumes that the two are averaged separately. Values of old_logprobs and advantages on
    demonstrations are ignored. mu: 0 no imitation, 1 only imitation; without demonstrations it is (1 - mu) PPO.
    """
    mu: float = Field(0.1, ge=0, le=1, description="share of imitation; the rest is PPO's")

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, rows: Tensor,
                 is_expert: Tensor) -> Losses:
        return self.mixed(logprobs, old_logprobs, advantages, rows, is_expert, self.mu, -logprobs)


class MixChord(Mixture):
    """CHORD: mix, with a share that follows a schedule and token weights for imitation.

    Zhang et al. 2025, arXiv:2508.11408. mu = chord_mu(step): linear from 0 to mu_peak over mu_warmup_steps, by half a
    cosine to mu_valley over mu_decay_steps, then mu_valley; with both 0 it is always mu_valley. enable_phi_function:
    use sft_phi. Assumes demonstrations that are worth imitating at first and a policy that improves beyond them. step:
    0-d, the optimizer step, from 1. The statistic mu is reported on demonstrations.
    """
    mu_warmup_steps: int = Field(0, ge=0, description="optimizer steps in which mu rises from 0 to mu_peak")
    mu_decay_steps: int = Field(0, ge=0, description="optimizer steps after them in which mu falls to mu_valley")
    mu_peak: float = Field(0.1, ge=0, le=1, description="share of imitation after the warmup")
    mu_valley: float = Field(0.1, ge=0, le=1, description="share of imitation at the end")
    enable_phi_function: bool = Field(True, description="whether expert rows have the loss sft_phi; false: sft")
    cutoff_prob: float = Field(1.0, gt=0, le=1, description="probability of sft_phi above which tokens teach nothing")

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, rows: Tensor, is_expert: Tensor,
                 step: Tensor) -> Losses:
        mu = chord_mu(int(step), self.mu_warmup_steps, self.mu_decay_steps, self.mu_peak, self.mu_valley)
        imitation = SftPhi(cutoff_prob=self.cutoff_prob)(logprobs)[0] if self.enable_phi_function else -logprobs
        return self.mixed(logprobs, old_logprobs, advantages, rows, is_expert, mu, imitation)


def chord_mu(step: int, warmup: int, decay: int, peak: float, valley: float) -> float:
    """Linear from 0 to peak in `warmup` steps, by a half cosine to valley in `decay` more, then valley."""
    if step < warmup:
        return peak * step / warmup
    if step >= warmup + decay:
        return valley
    return valley + (peak - valley) * 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / decay))
