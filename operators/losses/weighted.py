"""Losses that weight each token's log-prob; a ratio to the sampling policy is a constant weight."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ouroboros.operators.losses.ratio import OF_RESPONSES, Losses, log_ratio, row_mean, row_sum, statistics
from ouroboros.pipeline.settings.arguments.base import Loss
from ouroboros.pipeline.store.lazy import Tensor, torch


class Opmd(Loss):
    """Online policy mirror descent: -A log pi / (1 + tau).

    Kimi k1.5, arXiv:2501.12599; Yao et al. 2025, arXiv:2509.24203. The gradient of the squared consistency condition at
    pi = pi_old, tau >= 0 the strength of the regularisation towards pi_old (0: none). Use with the advantages opmd or
    asymre. It has no ratio, so it assumes nearly on-policy rollouts, or a baseline that tolerates older ones. tau only
    scales the loss. A = 0 gives 0.
    """
    tau: float = Field(1.0, ge=0, description="strength of the regularisation; it only scales the loss")

    def __call__(self, logprobs: Tensor, advantages: Tensor) -> Losses:
        return -advantages * logprobs / (1.0 + self.tau), {}


class Topr(Loss):
    """Tapered off-policy REINFORCE: failures fade as the policy forgets them.

    Le Roux et al. 2025, arXiv:2503.14286: loss = -alpha A log pi. alpha = 1 where A > advantage_threshold, else the
    ratio clipped to [0, 1], without gradient: failures lose weight as they become unlikely, successes never do. level
    sequence, as in the paper: the ratio of the whole response; token: of each token, which tapers far less for long
    responses. The ratio is to the policy that sampled, by the engine's log-probs for any bypass_old_logprobs. Assumes
    that the sign of A separates good from bad, as for rewards of +-1. At ratio 1 it is REINFORCE; a failure that the
    policy no longer generates has alpha 0; A = 0 gives 0.
    """
    advantage_threshold: float = Field(0.0, description="advantages above it have weight 1")
    level: Literal["sequence", "token"] = Field("sequence", description="the ratio of the response, or of the token")

    def __call__(self, logprobs: Tensor, rollout_logprobs: Tensor, advantages: Tensor, rows: Tensor) -> Losses:
        change = (logprobs - rollout_logprobs).detach()
        change = row_sum(change, rows) if self.level == "sequence" else change
        whole = advantages > self.advantage_threshold
        alpha = torch.where(whole, torch.ones_like(change), change.clamp(max=0.0).exp())
        return -alpha * advantages * logprobs, statistics(logprobs, rollout_logprobs, alpha < 1.0, alpha=alpha)


class Cispo(Loss):
    """Clipped importance weights: a token that PPO would drop still teaches.

    MiniMax-M1 (2025), arXiv:2506.13585: loss = -A clip(ratio) M log pi. The clipped ratio, in [1 - clip_range_low, 1 +
    clip_range_high], has no gradient, so a token that PPO would drop is still trained on. enable_mask_clip: M = 0 where
    ratio > 1 + mask_clip_range_high and A > 0, or ratio < 1 - mask_clip_range_low and A < 0; else M = 1. Assumes, as
    ppo, a close policy. At ratio 1 it is REINFORCE; with a low bound of 0, the default, a token that has become
    impossible has weight 0; A = 0 gives 0.
    """
    clip_range_low: float = Field(1.0, ge=0, description="the weight is clipped at 1 - this; 1: no bound below")
    clip_range_high: float = Field(0.28, ge=0, description="the weight is clipped at 1 + this")
    enable_mask_clip: bool = Field(False, description="whether tokens that PPO would clip by the mask's ranges weigh 0")
    mask_clip_range_low: float = Field(1.0, ge=0, description="lower range of the mask, where A < 0: ratios below 1 - "
                                                              "this")
    mask_clip_range_high: float = Field(0.28, ge=0, description="upper range of the mask, where A > 0: ratios above 1 "
                                                                "+ this")

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Losses:
        ratio = log_ratio(logprobs, old_logprobs).exp().detach()
        weight = ratio.clamp(1.0 - self.clip_range_low, 1.0 + self.clip_range_high)
        masked = ((ratio > 1.0 + self.mask_clip_range_high) & (advantages > 0)) | (
            (ratio < 1.0 - self.mask_clip_range_low) & (advantages < 0))
        weight = torch.where(masked, torch.zeros_like(weight), weight) if self.enable_mask_clip else weight
        return -advantages * weight * logprobs, statistics(logprobs, old_logprobs, weight != ratio)


class Rec(Loss):
    """REINFORCE with a choice of clips, weights and regularisers.

    Yao et al. 2025, arXiv:2509.24203: loss = -A' I log pi + c R. I by clip_mode: none 1; two-side 1 - low <= ratio <= 1
    + high; one-side PPO's half of that (A >= 0: ratio <= 1 + high; A <= 0: ratio >= 1 - low); ring two-side, or A >= 0
    and ratio <= 1 - low', or A <= 0 and ratio >= 1 + high'; gspo-one-side one-side with the row's mean ratio (average
    as seq-mean-token-mean). A' by weight: none A; importance_sampling A ratio; gspo_importance_sampling A row ratio;
    advantage A exp(A / temp), A / temp at most 20. R by regularizer: none; k2 (log ratio)^2; forward-kl -log pi. Ratios
    have no gradient; R does. Without a clip or a weight it assumes nothing about the policy that sampled. At ratio 1
    all but the weight advantage are REINFORCE plus R; A = 0 leaves R.
    """
    epsilon_low: float = Field(0.2, ge=0, description="the clip acts below the ratio 1 - this")
    epsilon_high: float = Field(0.2, ge=0, description="the clip acts above the ratio 1 + this")
    epsilon_low_prime: float = Field(0.6, ge=0, description="lower bound of the ring: where A >= 0, ratios up to 1 - "
                                                            "this teach again")
    epsilon_high_prime: float = Field(2.0, ge=0, description="upper bound of the ring: where A <= 0, ratios from 1 + "
                                                             "this teach again")
    clip_mode: Literal["none", "two-side", "one-side", "ring", "gspo-one-side"] = Field(
        "none", description="where tokens teach nothing: one-side is PPO's; gspo-one-side by the ratio of the row")
    weight: Literal["none", "importance_sampling", "gspo_importance_sampling", "advantage"] = Field(
        "none", description="factor of A: the ratio of the token, of the row, or exp(A / temp)")
    regularizer: Literal["none", "k2", "forward-kl"] = Field(
        "none", description="term added to the loss: k2, the squared log ratio; forward-kl, the negative log-"
                            "likelihood")
    regularizer_coef: float = Field(0.0, ge=0, description="weight of the regularizer")
    temp: float = Field(1.0, gt=0, description="temperature of weight=advantage")

    @property
    def aggregation(self) -> str:
        """Over responses where whole ones are tested: the mean over tokens would weight long ones more."""
        return OF_RESPONSES if self.clip_mode == "gspo-one-side" else "token-mean"

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, rows: Tensor) -> Losses:
        ratio = log_ratio(logprobs, old_logprobs).exp().detach()
        row_ratio = row_mean((logprobs - old_logprobs).detach(), rows).clamp(-20.0, 20.0).exp()
        inside = self._inside(row_ratio if self.clip_mode == "gspo-one-side" else ratio, advantages)
        factor = {"none": torch.ones_like(ratio), "importance_sampling": ratio, "gspo_importance_sampling": row_ratio,
                  "advantage": (advantages / self.temp).clamp(max=20.0).exp()}[self.weight]
        loss = torch.where(inside, -advantages * factor * logprobs, torch.zeros_like(logprobs))
        if self.regularizer != "none":
            term = (logprobs - old_logprobs).square() if self.regularizer == "k2" else -logprobs
            loss = loss + self.regularizer_coef * term
        return loss, statistics(logprobs, old_logprobs, ~inside)

    def _inside(self, ratio: Tensor, advantages: Tensor) -> Tensor:
        """[N] bool, the indicator I."""
        above, below = ratio <= 1.0 + self.epsilon_high, ratio >= 1.0 - self.epsilon_low
        if self.clip_mode == "none":
            return torch.ones_like(above)
        if self.clip_mode in ("one-side", "gspo-one-side"):
            return (above | (advantages < 0)) & (below | (advantages > 0))
        if self.clip_mode == "two-side":
            return above & below
        returning = (((advantages >= 0) & (ratio <= 1.0 - self.epsilon_low_prime))
                     | ((advantages <= 0) & (ratio >= 1.0 + self.epsilon_high_prime)))
        return (above & below) | returning
