"""Losses of batches that mix demonstrations (likelihood) and rollouts (PPO).

The two kinds are averaged separately (operators/aggregation.py, token_weights_by_kind), so

    total = (1 - mu) mean over rollouts of PPO + mu mean over demonstrations of SFT

for any share of demonstrations, micro-batches and ranks. A batch without one kind lacks its term.
"""

import math

import torch
from torch import Tensor

from ouroboros.operators.losses.clipped import ppo
from ouroboros.operators.losses.demonstrations import sft, sft_phi
from ouroboros.pipeline.settings.arguments.losses import Mix, MixChord

MIX, CHORD = Mix(), MixChord()

Loss = tuple[Tensor, dict[str, Tensor]]


def mix(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, rows: Tensor, is_expert: Tensor, mu=MIX.mu,
        clip_range=MIX.clip_range, clip_range_low=MIX.clip_range_low, clip_range_high=MIX.clip_range_high,
        clip_ratio_c=MIX.clip_ratio_c) -> Loss:
    """PPO on rollouts plus SFT on demonstrations (Zhang et al. 2025, arXiv:2508.11408, with a fixed mu).

    loss = (1 - mu) PPO on rollouts, mu (-log p) on demonstrations. Assumes that the two are averaged separately. Values
    of old_logprobs and advantages on demonstrations are ignored. mu: 0 no imitation, 1 only imitation; without
    demonstrations it is (1 - mu) PPO.
    """
    clip = {"clip_range": clip_range, "clip_range_low": clip_range_low, "clip_range_high": clip_range_high,
            "clip_ratio_c": clip_ratio_c}
    return _mixed(logprobs, old_logprobs, advantages, rows, is_expert, mu, sft(logprobs)[0], clip)


def mix_chord(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, rows: Tensor, is_expert: Tensor, step: Tensor,
              mu_warmup_steps=CHORD.mu_warmup_steps, mu_decay_steps=CHORD.mu_decay_steps, mu_peak=CHORD.mu_peak,
              mu_valley=CHORD.mu_valley, enable_phi_function=CHORD.enable_phi_function, cutoff_prob=CHORD.cutoff_prob,
              clip_range=CHORD.clip_range, clip_range_low=CHORD.clip_range_low, clip_range_high=CHORD.clip_range_high,
              clip_ratio_c=CHORD.clip_ratio_c) -> Loss:
    """CHORD: mix with mu = chord_mu(step), optionally with sft_phi (Zhang et al. 2025, arXiv:2508.11408).

    enable_phi_function: use sft_phi. chord_mu: linear from 0 to mu_peak over mu_warmup_steps, by half a cosine to
    mu_valley over mu_decay_steps, then mu_valley; with both 0 it is always mu_valley. Assumes demonstrations that are
    worth imitating at first and a policy that improves beyond them. step: 0-d, the optimizer step, from 1. The
    statistic mu is reported on demonstrations.
    """
    mu = chord_mu(int(step), mu_warmup_steps, mu_decay_steps, mu_peak, mu_valley)
    clip = {"clip_range": clip_range, "clip_range_low": clip_range_low, "clip_range_high": clip_range_high,
            "clip_ratio_c": clip_ratio_c}
    imitation = sft_phi(logprobs, cutoff_prob)[0] if enable_phi_function else sft(logprobs)[0]
    return _mixed(logprobs, old_logprobs, advantages, rows, is_expert, mu, imitation, clip)


def chord_mu(step: int, warmup: int, decay: int, peak: float, valley: float) -> float:
    """Linear from 0 to peak in `warmup` steps, by a half cosine to valley in `decay` more, then valley."""
    if step < warmup:
        return peak * step / warmup
    if step >= warmup + decay:
        return valley
    return valley + (peak - valley) * 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / decay))


def _mixed(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, rows: Tensor, is_expert: Tensor, mu: float,
           imitation: Tensor, clip: dict) -> Loss:
    """PPO statistics on rollouts, sft_loss (before mu) and mu on demonstrations; 0 on the other kind."""
    zero = torch.zeros_like(logprobs)
    old = torch.where(is_expert, logprobs.detach(), old_logprobs)
    reinforced, found = ppo(logprobs, old, torch.where(is_expert, zero, advantages), rows, **clip)
    apart = {name: torch.where(is_expert, zero, value) for name, value in found.items()}
    apart["sft_loss"] = torch.where(is_expert, imitation.detach(), zero)
    apart["mu"] = mu * is_expert.to(logprobs.dtype)
    return torch.where(is_expert, mu * imitation, (1.0 - mu) * reinforced), apart
