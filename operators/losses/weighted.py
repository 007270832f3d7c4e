"""Losses that weight each token's log-prob; a ratio to the sampling policy is a constant weight."""

import torch
from torch import Tensor

from ouroboros.operators.losses.ratio import clip_bounds, log_ratio, row_mean, row_sum, statistics
from ouroboros.pipeline.settings.arguments.losses import Cispo, Opmd, Rec, Topr

CISPO, OPMD, REC, TOPR = Cispo(), Opmd(), Rec(), Topr()

Loss = tuple[Tensor, dict[str, Tensor]]


def opmd(logprobs: Tensor, advantages: Tensor, tau=OPMD.tau) -> Loss:
    """Online policy mirror descent (Kimi k1.5, arXiv:2501.12599; Yao et al. 2025, arXiv:2509.24203).

    loss = -A log pi / (1 + tau): the gradient of the squared consistency condition at pi = pi_old, tau >= 0 the
    strength of the regularisation towards pi_old (0: none). Use with the advantages opmd or asymre. It has no ratio, so
    it assumes nearly on-policy rollouts, or a baseline that tolerates older ones. tau only scales the loss. A = 0 gives
    0.
    """
    return -advantages * logprobs / (1.0 + tau), {}


def topr(logprobs: Tensor, rollout_logprobs: Tensor, advantages: Tensor, rows: Tensor,
         advantage_threshold=TOPR.advantage_threshold, level=TOPR.level) -> Loss:
    """Tapered off-policy REINFORCE (Le Roux et al. 2025, arXiv:2503.14286): loss = -alpha A log pi.

    alpha = 1 where A > advantage_threshold, else the ratio clipped to [0, 1], without gradient: failures lose weight as
    they become unlikely, successes never do. level sequence, as in the paper: the ratio of the whole response; token:
    of each token, which tapers far less for long responses. The ratio is to the policy that sampled, by the engine's
    log-probs for any bypass_old_logprobs. Assumes that the sign of A separates good from bad, as for rewards of +-1. At
    ratio 1 it is REINFORCE; a failure that the policy no longer generates has alpha 0; A = 0 gives 0.
    """
    change = (logprobs - rollout_logprobs).detach()
    change = row_sum(change, rows) if level == "sequence" else change
    alpha = torch.where(advantages > advantage_threshold, torch.ones_like(change), change.clamp(max=0.0).exp())
    return -alpha * advantages * logprobs, statistics(logprobs, rollout_logprobs, alpha < 1.0, alpha=alpha)


def cispo(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip_range_low=CISPO.clip_range_low,
          clip_range_high=CISPO.clip_range_high, enable_mask_clip=CISPO.enable_mask_clip,
          mask_clip_range_low=CISPO.mask_clip_range_low, mask_clip_range_high=CISPO.mask_clip_range_high) -> Loss:
    """Clipped importance weights (MiniMax-M1, arXiv:2506.13585): loss = -A clip(ratio) M log pi.

    The clipped ratio, in [1 - clip_range_low, 1 + clip_range_high], has no gradient, so a token that PPO would drop is
    still trained on. enable_mask_clip: M = 0 where ratio > 1 + mask_clip_range_high and A > 0, or ratio < 1 -
    mask_clip_range_low and A < 0; else M = 1. Assumes, as ppo, a close policy. At ratio 1 it is REINFORCE; with a low
    bound of 0, the default, a token that has become impossible has weight 0; A = 0 gives 0.
    """
    ratio = log_ratio(logprobs, old_logprobs).exp().detach()
    weight = ratio.clamp(*clip_bounds(0.0, clip_range_low, clip_range_high))
    masked = ((ratio > 1.0 + mask_clip_range_high) & (advantages > 0)) | (
        (ratio < 1.0 - mask_clip_range_low) & (advantages < 0))
    weight = torch.where(masked, torch.zeros_like(weight), weight) if enable_mask_clip else weight
    return -advantages * weight * logprobs, statistics(logprobs, old_logprobs, weight != ratio)


def rec(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, rows: Tensor, epsilon_low=REC.epsilon_low,
        epsilon_high=REC.epsilon_high, epsilon_low_prime=REC.epsilon_low_prime,
        epsilon_high_prime=REC.epsilon_high_prime, clip_mode=REC.clip_mode, weight=REC.weight,
        regularizer=REC.regularizer, regularizer_coef=REC.regularizer_coef, temp=REC.temp) -> Loss:
    """REINFORCE with separate clipping and regularisation (Yao et al. 2025, arXiv:2509.24203).

    loss = -A' I log pi + c R. I by clip_mode: none 1; two-side 1 - low <= ratio <= 1 + high; one-side PPO's half of
    that (A >= 0: ratio <= 1 + high; A <= 0: ratio >= 1 - low); ring two-side, or A >= 0 and ratio <= 1 - low', or A <=
    0 and ratio >= 1 + high'; gspo-one-side one-side with the row's mean ratio (average as seq-mean-token-mean). A' by
    weight: none A; importance_sampling A ratio; gspo_importance_sampling A row ratio; advantage A exp(A / temp), A /
    temp at most 20. R by regularizer: none; k2 (log ratio)^2; forward-kl -log pi. Ratios have no gradient; R does.
    Without a clip or a weight it assumes nothing about the policy that sampled. At ratio 1 all but the weight advantage
    are REINFORCE plus R; A = 0 leaves R.
    """
    ratio = log_ratio(logprobs, old_logprobs).exp().detach()
    row_ratio = row_mean((logprobs - old_logprobs).detach(), rows).clamp(-20.0, 20.0).exp()
    tested = row_ratio if clip_mode == "gspo-one-side" else ratio
    inside = _inside(clip_mode, tested, advantages, (epsilon_low, epsilon_high, epsilon_low_prime, epsilon_high_prime))
    factor = {"none": torch.ones_like(ratio), "importance_sampling": ratio, "gspo_importance_sampling": row_ratio,
              "advantage": (advantages / temp).clamp(max=20.0).exp()}[weight]
    loss = torch.where(inside, -advantages * factor * logprobs, torch.zeros_like(logprobs))
    if regularizer != "none":
        term = (logprobs - old_logprobs).square() if regularizer == "k2" else -logprobs
        loss = loss + regularizer_coef * term
    return loss, statistics(logprobs, old_logprobs, ~inside)


def _inside(clip_mode: str, ratio: Tensor, advantages: Tensor, epsilons: tuple[float, float, float, float]) -> Tensor:
    """[N] bool, the indicator I of rec; epsilons: low, high, low', high'."""
    low, high, low_prime, high_prime = epsilons
    above, below = ratio <= 1.0 + high, ratio >= 1.0 - low
    if clip_mode == "none":
        return torch.ones_like(above)
    if clip_mode in ("one-side", "gspo-one-side"):
        return (above | (advantages < 0)) & (below | (advantages > 0))
    if clip_mode == "two-side":
        return above & below
    returning = ((advantages >= 0) & (ratio <= 1.0 - low_prime)) | ((advantages <= 0) & (ratio >= 1.0 + high_prime))
    return (above & below) | returning
