"""Importance correction for the mismatch between the sampling engine and the training model.

The same weights give different log-probs in different programs (kernels, precision), so even a fresh rollout is
slightly off-policy. The weight trainer / rollout corrects this; it must be bounded where it is far from 1, or one token
dominates the batch (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training").
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ouroboros.operators.losses.ratio import MOST, row_max, row_mean, row_sum

CLIP = 0.2  # of mismatch_outside: the usual clip range of PPO (Schulman et al. 2017)


def importance_correction(logprobs: Tensor, rollout_logprobs: Tensor, rows: Tensor, level: str = "token",
                          mode: str = "truncate", threshold: float = 2.0) -> tuple[Tensor, dict[str, Tensor]]:
    """(loss weights [N], {"corrected": 1 where the bound applied, [N]}), both without gradient.

    logprobs: of the trainer with the weights that sampled, or those just before the update. w = exp(logprobs -
    rollout_logprobs), level sequence: exp of the sum over the row, for each of its tokens; none: 1. mode truncate:
    min(w, threshold) (Espeholt et al. 2018, IMPALA, arXiv:1802.01561); mask: w where w <= threshold, else 0, so that
    tokens with a large mismatch are not trained on (Liu et al. 2025, "When speed kills stability"). Assumes two similar
    policies: with the same weights the gap is due to the programs, for a stale row also to policy updates. Equal
    log-probs give 1 everywhere. The log ratio is clamped to +-20.
    """
    if level == "none":
        return torch.ones_like(rollout_logprobs), {"corrected": torch.zeros_like(rollout_logprobs)}
    change = (logprobs - rollout_logprobs).detach()
    change = row_sum(change, rows) if level == "sequence" else change
    weights = change.clamp(-MOST, MOST).exp()
    beyond = weights > threshold
    bounded = weights.clamp(max=threshold) if mode == "truncate" else torch.where(beyond, 0.0, weights)
    return bounded, {"corrected": beyond.to(weights.dtype)}


def rejected(logprobs: Tensor, rollout_logprobs: Tensor, rows: Tensor,
             bounds: Mapping[str, float | Sequence[float]]) -> Tensor:
    """[N] true on tokens that are left out of the loss, without gradient (Liu et al. 2025, as above).

    l = logprobs - rollout_logprobs, clamped to +-20, k1 = -l, k2 = l^2 / 2, k3 = exp(l) - 1 - l. bounds: veRL's names:
    token_k1 .. token_k3 of a token; seq_sum, seq_mean and seq_max of the sum, mean or maximum over a row, which is left
    out as a whole. k1 has [low, high] on exp(k1), the probability of the engine over the trainer's: of a token, of the
    row, or its geometric mean; k2 and k3 have an upper bound. Every bound must hold; bounds themselves are within. With
    token_k1 [1 / b, 1 / a] and importance weights of tokens bounded by b this is IcePop (Ling team 2025,
    arXiv:2510.18855) with the range [a, b]. Averages still divide by all tokens. Assumes, as importance_correction, two
    similar policies. Equal log-probs are within every bound that contains 1, or 0.
    """
    change = (logprobs - rollout_logprobs).detach().clamp(-MOST, MOST)
    estimates = {"k1": -change, "k2": 0.5 * change.square(), "k3": change.expm1() - change}
    out = torch.zeros_like(change, dtype=torch.bool)
    for name, bound in bounds.items():
        level, _, estimate = name.rpartition("_")
        values = LEVELS[level](estimates[estimate], rows)
        low, high = map(math.log, bound) if estimate == "k1" else (-math.inf, bound)
        out |= (values < low) | (values > high)
    return out


LEVELS = {"token": lambda values, rows: values, "seq_sum": row_sum, "seq_mean": row_mean, "seq_max": row_max}


@dataclass(frozen=True)
class Mismatch:
    """Result of `mismatch`; fields as in the step record. The defaults are those of no tokens."""

    mismatch_mean: float = 0.0
    mismatch_max: float = 0.0
    kl_rollout_trainer: float = 0.0
    kl_trainer_rollout: float = 0.0
    effective_sample_size: float = 1.0
    corrected_fraction: float = 0.0
    mismatch_p95: float = 0.0
    mismatch_outside: float = 0.0


def mismatch(logprobs: Tensor, rollout_logprobs: Tensor, weights: Tensor, corrected: Tensor) -> Mismatch:
    """Mismatch between trainer and rollout over all N action tokens; all 0 (size 1) for N = 0.

    Assumes tokens sampled by the rollout, with the same weights on both sides; otherwise the values include staleness.

    mismatch_mean, mismatch_p95, mismatch_max: |trainer - rollout| log-prob; p95 is the smallest that 95% of the tokens
    do not exceed. mismatch_outside: share of tokens whose ratio is outside 1 +- CLIP. kl_rollout_trainer,
    kl_trainer_rollout: in nats, from tokens that the rollout sampled, in non-negative forms: mean of w - 1 - log w, and
    of w log w - w + 1 (Schulman 2020). effective_sample_size: (sum w)^2 / (N sum w^2) of the bounded weights (Kish
    1965), in [0, 1]; 1 where all are equal, 0 where all are masked. corrected_fraction: mean of `corrected`.
    """
    if not len(logprobs):
        return Mismatch()
    change = (logprobs - rollout_logprobs).detach().double()
    log = change.clamp(-MOST, MOST)
    ratio, used = log.exp(), weights.double()
    size = used.sum().square() / (len(used) * used.square().sum()).clamp(min=torch.finfo(torch.float64).tiny)
    gap = change.abs()
    return Mismatch(gap.mean().item(), gap.max().item(), (ratio - 1.0 - log).mean().item(),
                    (ratio * log - ratio + 1.0).mean().item(), size.item(), corrected.double().mean().item(),
                    gap.kthvalue(math.ceil(0.95 * len(gap))).values.item(),
                    ((ratio - 1.0).abs() > CLIP).double().mean().item())
