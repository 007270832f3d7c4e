"""Losses on the clipped ratio to the sampling policy, with gradients through the ratio itself."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from ouroboros.operators.losses.ratio import OF_RESPONSES, Clip, Losses, log_ratio, row_mean, statistics
from ouroboros.pipeline.settings.arguments.base import Loss
from ouroboros.pipeline.store.lazy import Tensor, torch


class DualClip(Clip):
    """The same, with a bound for negative advantages."""
    clip_ratio_c: float | None = Field(3.0, gt=1, description="where A < 0 the loss is at most -A times this (dual "
                                                              "clip); null: no bound")


class Ppo(DualClip):
    """PPO's clipped surrogate with the dual clip.

    Schulman et al. 2017, arXiv:1707.06347, eq. 7; dual clip: Ye et al. 2020, arXiv:1912.09729.

    ratio = exp(clamp(logprobs - old_logprobs, -20, 20))
    loss  = max(-A ratio, -A clip(ratio, 1 - low, 1 + high)), and where A < 0 at most -A clip_ratio_c.

    low = clip_range_low, high = clip_range_high, both default to clip_range; clip_range_high > clip_range_low is DAPO's
    clip-higher (Yu et al. 2025, arXiv:2503.14476). clip_ratio_c null: no dual clip.
    enable_sequence_masking: rows whose mean of old - new exceeds delta_sequence_masking are ignored where A < 0
    (DeepSeek-V3.2, arXiv:2512.02556).
    fallback_to_policy_gradient: sets old = new, which is exact on-policy; ratio 1, gradient -A. Assumes a policy close
    to the one that sampled: a token's ratio ignores that of its prefix. A = 0 gives 0.
    """
    enable_sequence_masking: bool = Field(False, description="whether rows with A < 0 far from the policy teach "
                                                             "nothing")
    delta_sequence_masking: float = Field(0.1, description="bound of that mask: largest mean of old - new log-prob, "
                                                           "nats")
    fallback_to_policy_gradient: bool = Field(False, description="whether the ratio is taken as 1, exact for fresh "
                                                                 "rollouts")

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, rows: Tensor) -> Losses:
        old = logprobs.detach() if self.fallback_to_policy_gradient else old_logprobs
        loss, clipped, bounded = self._surrogate(logprobs, old, advantages)
        masked = torch.zeros_like(bounded)
        if self.enable_sequence_masking:
            masked = (row_mean((old - logprobs).detach(), rows) > self.delta_sequence_masking) & (advantages < 0)
            loss = torch.where(masked, torch.zeros_like(loss), loss)
        more = {"clip_fraction_lower": bounded.to(loss.dtype), "sequence_masked": masked.to(loss.dtype)}
        return loss, statistics(logprobs, old, clipped, **more)

    def _surrogate(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(loss [N], where it is clipped, where the dual clip applies)."""
        ratio = log_ratio(logprobs, old_logprobs).exp()
        unclipped, clipped = -advantages * ratio, -advantages * ratio.clamp(*self.bounds)
        pessimistic = torch.maximum(unclipped, clipped)
        ceiling = -advantages * (math.inf if self.clip_ratio_c is None else self.clip_ratio_c)
        bounded = (advantages < 0) & (pessimistic > ceiling)
        return torch.where(bounded, ceiling, pessimistic), clipped > unclipped, bounded


class DecoupledPpo(Clip):
    """PPO whose trust region is not around the stale policy that sampled.

    It is around a recent one (Hilton et al. 2021, arXiv:2110.00641):
    loss = w max(-A u, -A clip(u, 1 - low, 1 + high)), u = pi / pi_prox, w = pi_prox / pi_rollout without gradient,
    truncated at behave_weight_cap, so that a token above it is down-weighted, not dropped. prox is the policy just
    before this update, rollout the stale one that sampled, by the engine's log-probs for any bypass_old_logprobs
    (AReaL, Fu et al. 2025, arXiv:2505.24298). Assumes that both log-probs come from one program: their gap counts as
    staleness. With prox = rollout it is PPO without the dual clip. A = 0 gives 0. Where a train batch is one
    update (trainer.ppo_epochs), prox = pi and u = 1 in value: w applies, the clip never does.
    """
    behave_weight_cap: float | None = Field(None, gt=0, description="largest weight of a token; null: no bound")

    def __call__(self, logprobs: Tensor, rollout_logprobs: Tensor, prox_logprobs: Tensor, advantages: Tensor) -> Losses:
        ratio = log_ratio(logprobs, prox_logprobs).exp()
        unclipped, clipped = -advantages * ratio, -advantages * ratio.clamp(*self.bounds)
        cap = math.inf if self.behave_weight_cap is None else self.behave_weight_cap
        weight = log_ratio(prox_logprobs, rollout_logprobs).exp().detach().clamp(max=cap)
        reported = statistics(logprobs, rollout_logprobs, clipped > unclipped, behave_weight=weight)
        return weight * torch.maximum(unclipped, clipped), reported


class Gspo(Loss):
    """Group sequence policy optimisation: the ratio of the whole response, normalised by its length.

    Zheng et al. 2025, arXiv:2507.18071. s = exp(mean over the row of log(pi / pi_old)), the ratio of the whole
    response; each token's loss is max(-A s, -A clip(s, 1 - low, 1 + high)), A the mean advantage of the row. Assumes
    one advantage per response, as group advantages are; for per-token ones use gspo_token. The seq-mean-token-mean
    average is the mean over responses. A row of one token is PPO with narrow bounds and without the dual clip; A = 0
    gives 0.
    """
    aggregation = OF_RESPONSES
    clip_range_low: float = Field(3e-4, ge=0, le=1, description="the ratio is clipped at 1 - this")
    clip_range_high: float = Field(4e-4, ge=0, description="the ratio is clipped at 1 + this")

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, rows: Tensor) -> Losses:
        ratio = row_mean(logprobs - old_logprobs, rows).clamp(-20.0, 20.0).exp()
        return self._clipped(logprobs, old_logprobs, row_mean(advantages, rows), ratio)

    def _clipped(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, ratio: Tensor) -> Losses:
        unclipped = -advantages * ratio
        clipped = -advantages * ratio.clamp(1.0 - self.clip_range_low, 1.0 + self.clip_range_high)
        return torch.maximum(unclipped, clipped), statistics(logprobs, old_logprobs, clipped > unclipped)


class GspoToken(Gspo):
    """GSPO with an advantage of each token.

    arXiv:2507.18071 (2025), section 4.3. s_t = sg(s) pi_t / sg(pi_t), s as in gspo: it has the row's value and the
    token's gradient; loss = max(-A_t s_t, -A_t clip(s_t, 1 - low, 1 + high)). Assumes that the response's drift applies
    to each of its tokens. Where the advantage is constant over a row, loss and gradient, summed over the row, equal
    those of gspo. Averaged as seq-mean-token-mean. A = 0 gives 0.
    """

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, rows: Tensor) -> Losses:
        sequence = row_mean(logprobs - old_logprobs, rows).clamp(-20.0, 20.0).exp().detach()
        return self._clipped(logprobs, old_logprobs, advantages, sequence * (logprobs - logprobs.detach()).exp())


class Gmpo(Clip):
    """Geometric-mean policy optimisation: the ratio of the whole response, each token's clipped before.

    Zhao et al. 2025, arXiv:2507.20673, eq. 4. loss = -A exp(mean over the row of x), A the mean advantage of the row,
    x = min(l, clip(l, -low, high)) where its token has A > 0, max of the two where A < 0, 0 at A = 0; l = log(pi /
    pi_old). Clipped in log space, as the paper does: low = high = 0.4 is e^-0.4 to e^0.4, wider than PPO's because one
    token moves the mean by 1 / length. Assumes one advantage a response, as gspo does. A row of one token is PPO with
    these bounds; at ratio 1 the gradient is the policy gradient of the row's mean. The seq-mean-token-mean average is
    the mean over responses. A = 0 gives 0.
    """
    aggregation = OF_RESPONSES
    clip_range: float = Field(0.4, ge=0, description="both bounds of a token's log ratio, unless they are set apart")
    clip_range_low: float | None = Field(None, ge=0, description="log ratios are clipped at minus this; null: "
                                                                 "clip_range")
    clip_range_high: float | None = Field(None, ge=0, description="log ratios are clipped at this; null: clip_range")

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, rows: Tensor) -> Losses:
        low, high = self.ranges
        change, sign = log_ratio(logprobs, old_logprobs), advantages.sign()
        clipped = sign * torch.minimum(sign * change, sign * change.clamp(-low, high))
        ratio = row_mean(clipped, rows).exp()
        held = (clipped != change) & (sign != 0)
        return -row_mean(advantages, rows) * ratio, statistics(logprobs, old_logprobs, held)


class Sapo(Loss):
    """Soft adaptive policy optimisation: a gate that fades with the ratio, in place of a clip.

    Gao et al. 2025, arXiv:2511.20347. loss = -A (4 / tau) sigmoid(tau (ratio - 1)), tau = tau_pos where A > 0, tau_neg
    elsewhere, differentiated through the ratio: its gradient is -A ratio grad log pi times a gate 4 s (1 - s), s the
    sigmoid, which is 1 at ratio 1 and decays on both sides, replacing a hard clip. The paper uses tau_neg > tau_pos, so
    that the gate closes sooner for failures. Assumes rows of a similar policy: for distant ones every gate is closed.
    At ratio 1 the gradient is the policy gradient for any tau; A = 0 gives 0. Averaged as seq-mean-token-mean.
    clip_fraction counts gates below 1/2.
    """
    aggregation = OF_RESPONSES
    tau_pos: float = Field(1.0, gt=0, description="sharpness of the gate where A > 0")
    tau_neg: float = Field(1.05, gt=0, description="sharpness of the gate elsewhere")

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Losses:
        tau = torch.full_like(logprobs, self.tau_neg).masked_fill(advantages > 0, self.tau_pos)
        ratio = log_ratio(logprobs, old_logprobs).exp()
        soft = torch.sigmoid(tau * (ratio - 1.0))
        gate = 4.0 * soft * (1.0 - soft)
        return -advantages * 4.0 / tau * soft, statistics(logprobs, old_logprobs, gate < 0.5, soft_gate=gate)


class ImportanceSampling(Loss):
    """The unclipped surrogate: -A times the ratio.

    Kakade & Langford 2002; the log ratio is clamped to +-20. At ratio 1 its gradient is the policy gradient, elsewhere
    that of a first-order approximation: a token's ratio weighs its choice, not its prefix, so it assumes a policy close
    to the one that sampled. Unbiased only for responses of one token, with unbounded variance. Intended for small
    advantages, such as those of distillation. A = 0 gives 0.
    """

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Losses:
        ratio = log_ratio(logprobs, old_logprobs).exp()
        return -advantages * ratio, statistics(logprobs, old_logprobs, torch.zeros_like(ratio), ratio=ratio)


class M2po(Loss):
    """Second-moment trust policy: the tokens of the largest squared log ratios teach nothing.

    Zheng et al. 2025, arXiv:2510.01161, alg. 1, eq. 5. loss = -M A ratio. Of the tokens that PPO could clip (A > 0 and
    ratio > 1, or A < 0 and ratio < 1) those with the largest (log ratio)^2 get M = 0 until the mean of the remaining
    ones is at most m2_threshold; M = 1 elsewhere.

    level batch, as the paper has it: the mean over all tokens of the batch, by the log-probs just before the update.
    level sequence: over each row, which needs no forward before the first gradient. The mean over the batch is then
    within the threshold too, and at least as many tokens are dropped: for rows with log ratios (0.3) and (0.1, 0.1,
    0.1), A = 1, batch keeps all (mean 0.03), sequence drops the 0.3 (0.09). The ratio is to the policy that sampled, by
    the engine's log-probs for any bypass_old_logprobs: with one update per batch, the moment measures staleness.
    Assumes, as ppo, a close policy. At ratio 1 nothing is dropped and the gradient is -A; A = 0 gives 0.
    """
    m2_threshold: float = Field(0.04, gt=0, description="largest mean of the squared log ratio, by level")
    level: Literal["sequence", "batch"] = Field("sequence", description=(
        "what the mean is taken over: each row, or as its authors have it all tokens of the batch, a forward more"))

    @property
    def chooses_tokens(self) -> bool:
        return self.level == "batch"

    def __call__(self, logprobs: Tensor, rollout_logprobs: Tensor, advantages: Tensor, rows: Tensor,
                 chosen: Tensor | None = None) -> Losses:
        change = log_ratio(logprobs, rollout_logprobs)
        kept = self.choose(logprobs, rollout_logprobs, advantages, rows) if chosen is None else chosen > 0
        loss = torch.where(kept, -advantages * change.exp(), torch.zeros_like(change))
        return loss, statistics(logprobs, rollout_logprobs, ~kept)

    def choose(self, logprobs: Tensor, rollout_logprobs: Tensor, advantages: Tensor, rows: Tensor) -> Tensor:
        """[N] false on the largest bound moments of each row, or of all given tokens, until the mean of the rest is
        within m2_threshold."""
        change = log_ratio(logprobs.detach(), rollout_logprobs)
        moments, bound = change.square(), advantages * change > 0
        kept, whole = torch.ones_like(bound), rows * (self.level == "sequence")
        for row in whole.unique():
            inside = torch.nonzero(bound & (whole == row)).flatten()
            ascending, order = moments[inside].sort(stable=True)
            means = ascending.cumsum(0) / torch.arange(1, len(inside) + 1, device=moments.device)
            kept[inside[order[means > self.m2_threshold]]] = False
        return kept


class Sppo(Loss):
    """Softmax PPO: the log ratio, inside a hard region.

    Vaswani et al. 2021, arXiv:2108.05828. loss = -A log(ratio) I, I = 1 where 1 / (1 + epsilon) <= ratio <= 1 +
    epsilon, without gradient; tokens outside have no effect, on either side. Inside, the gradient is -A grad log pi,
    the plain policy gradient, which assumes that the region is small. At ratio 1 the loss is 0 and its gradient -A;
    A = 0 gives 0.
    """
    epsilon: float = Field(0.3, gt=0, description="the region is 1 / (1 + epsilon) <= ratio <= 1 + epsilon")

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Losses:
        change = logprobs - old_logprobs
        inside = change.detach().abs() <= math.log1p(self.epsilon)
        loss = torch.where(inside, -advantages * change, torch.zeros_like(change))
        return loss, statistics(logprobs, old_logprobs, ~inside)
