"""Losses on the clipped ratio to the sampling policy, with gradients through the ratio itself."""

import math

import torch
from torch import Tensor

from ouroboros.operators.losses.ratio import clip_bounds, log_ratio, row_mean, statistics
from ouroboros.pipeline.settings.arguments.losses import DecoupledPpo, Gmpo, Gspo, M2po, Ppo, Sapo, Sppo

PPO, DECOUPLED, GMPO, GSPO, SAPO, M2PO, SPPO = Ppo(), DecoupledPpo(), Gmpo(), Gspo(), Sapo(), M2po(), Sppo()

Loss = tuple[Tensor, dict[str, Tensor]]


def ppo(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, rows: Tensor, clip_range=PPO.clip_range,
        clip_range_low=PPO.clip_range_low, clip_range_high=PPO.clip_range_high, clip_ratio_c=PPO.clip_ratio_c,
        enable_sequence_masking=PPO.enable_sequence_masking, delta_sequence_masking=PPO.delta_sequence_masking,
        fallback_to_policy_gradient=PPO.fallback_to_policy_gradient) -> Loss:
    """Clipped surrogate (Schulman et al. 2017, arXiv:1707.06347, eq. 7) with dual clip (Ye et al. 2020).

    ratio = exp(clamp(logprobs - old_logprobs, -20, 20))
    loss  = max(-A ratio, -A clip(ratio, 1 - low, 1 + high)), and where A < 0 at most -A clip_ratio_c.

    low = clip_range_low, high = clip_range_high, both default to clip_range; clip_range_high > clip_range_low is DAPO's
    clip-higher (Yu et al. 2025, arXiv:2503.14476). Dual clip: arXiv:1912.09729; clip_ratio_c null: none.
    enable_sequence_masking: rows whose mean of old - new exceeds delta_sequence_masking are ignored where A < 0
    (DeepSeek-V3.2, arXiv:2512.02556).
    fallback_to_policy_gradient: sets old = new, which is exact on-policy; ratio 1, gradient -A. Assumes a policy close
    to the one that sampled: a token's ratio ignores that of its prefix. A = 0 gives 0.
    """
    old = logprobs.detach() if fallback_to_policy_gradient else old_logprobs
    loss, clipped, bounded = _surrogate(logprobs, old, advantages, clip_ratio_c,
                                        clip_bounds(clip_range, clip_range_low, clip_range_high))
    masked = torch.zeros_like(bounded)
    if enable_sequence_masking:
        masked = (row_mean((old - logprobs).detach(), rows) > delta_sequence_masking) & (advantages < 0)
        loss = torch.where(masked, torch.zeros_like(loss), loss)
    more = {"clip_fraction_lower": bounded.to(loss.dtype), "sequence_masked": masked.to(loss.dtype)}
    return loss, statistics(logprobs, old, clipped, **more)


def _surrogate(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, most: float | None,
               bounds: tuple[float, float]) -> tuple[Tensor, Tensor, Tensor]:
    """(loss [N], where it is clipped, where the dual clip `most` applies)."""
    ratio = log_ratio(logprobs, old_logprobs).exp()
    unclipped, clipped = -advantages * ratio, -advantages * ratio.clamp(*bounds)
    pessimistic = torch.maximum(unclipped, clipped)
    ceiling = -advantages * (math.inf if most is None else most)
    bounded = (advantages < 0) & (pessimistic > ceiling)
    return torch.where(bounded, ceiling, pessimistic), clipped > unclipped, bounded


def decoupled_ppo(logprobs: Tensor, rollout_logprobs: Tensor, prox_logprobs: Tensor, advantages: Tensor,
                  clip_range=DECOUPLED.clip_range, clip_range_low=DECOUPLED.clip_range_low,
                  clip_range_high=DECOUPLED.clip_range_high, behave_weight_cap=DECOUPLED.behave_weight_cap) -> Loss:
    """PPO with a trust region around a recent policy (Hilton et al. 2021, arXiv:2110.00641).

    loss = w max(-A u, -A clip(u, 1 - low, 1 + high)), u = pi / pi_prox, w = pi_prox / pi_rollout without gradient,
    truncated at behave_weight_cap, so that a token above it is down-weighted, not dropped. prox is the policy just
    before this update, rollout the stale one that sampled, by the engine's log-probs for any bypass_old_logprobs
    (AReaL, Fu et al. 2025, arXiv:2505.24298). Assumes that both log-probs come from one program: their gap counts as
    staleness. With prox = rollout it is PPO without the dual clip. A = 0 gives 0. Where a train batch is one
    update (trainer.ppo_epochs), prox = pi and u = 1 in value: w applies, the clip never does.
    """
    cap = math.inf if behave_weight_cap is None else behave_weight_cap
    ratio = log_ratio(logprobs, prox_logprobs).exp()
    low, high = clip_bounds(clip_range, clip_range_low, clip_range_high)
    unclipped, clipped = -advantages * ratio, -advantages * ratio.clamp(low, high)
    weight = log_ratio(prox_logprobs, rollout_logprobs).exp().detach().clamp(max=cap)
    reported = statistics(logprobs, rollout_logprobs, clipped > unclipped, behave_weight=weight)
    return weight * torch.maximum(unclipped, clipped), reported


def gspo(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, rows: Tensor, clip_range_low=GSPO.clip_range_low,
         clip_range_high=GSPO.clip_range_high) -> Loss:
    """Group sequence policy optimisation (Zheng et al. 2025, arXiv:2507.18071).

    s = exp(mean over the row of log(pi / pi_old)), the length-normalised ratio of the whole response; each token's loss
    is max(-A s, -A clip(s, 1 - low, 1 + high)), A the mean advantage of the row. Assumes one advantage per response, as
    group advantages are; for per-token ones use gspo_token. The seq-mean-token-mean average is the mean over responses.
    A row of one token is PPO with narrow bounds and without the dual clip; A = 0 gives 0.
    """
    ratio = row_mean(logprobs - old_logprobs, rows).clamp(-20.0, 20.0).exp()
    advantage = row_mean(advantages, rows)
    unclipped = -advantage * ratio
    clipped = -advantage * ratio.clamp(*clip_bounds(0.0, clip_range_low, clip_range_high))
    return torch.maximum(unclipped, clipped), statistics(logprobs, old_logprobs, clipped > unclipped)


def gspo_token(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, rows: Tensor,
               clip_range_low=GSPO.clip_range_low, clip_range_high=GSPO.clip_range_high) -> Loss:
    """GSPO with per-token advantages (arXiv:2507.18071, section 4.3).

    s_t = sg(s) pi_t / sg(pi_t), s as in gspo: it has the row's value and the token's gradient; loss = max(-A_t s_t,
    -A_t clip(s_t, 1 - low, 1 + high)). Assumes that the response's drift applies to each of its tokens. Where the
    advantage is constant over a row, loss and gradient, summed over the row, equal those of gspo. Averaged as
    seq-mean-token-mean. A = 0 gives 0.
    """
    sequence = row_mean(logprobs - old_logprobs, rows).clamp(-20.0, 20.0).exp().detach()
    ratio = sequence * (logprobs - logprobs.detach()).exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(*clip_bounds(0.0, clip_range_low, clip_range_high))
    return torch.maximum(unclipped, clipped), statistics(logprobs, old_logprobs, clipped > unclipped)


def gmpo(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, rows: Tensor, clip_range=GMPO.clip_range,
         clip_range_low=GMPO.clip_range_low, clip_range_high=GMPO.clip_range_high) -> Loss:
    """Geometric-mean policy optimisation (Zhao et al. 2025, arXiv:2507.20673, eq. 4).

    loss = -A exp(mean over the row of x), A the mean advantage of the row, x = min(l, clip(l, -low, high)) where its
    token has A > 0, max of the two where A < 0, 0 at A = 0; l = log(pi / pi_old). Clipped in log space, as the paper
    does: low = high = 0.4 is e^-0.4 to e^0.4, wider than PPO's because one token moves the mean by 1 / length. Assumes
    one advantage a response, as gspo does. A row of one token is PPO with these bounds; at ratio 1 the gradient is the
    policy gradient of the row's mean. The seq-mean-token-mean average is the mean over responses. A = 0 gives 0.
    """
    low, high = (clip_range if bound is None else bound for bound in (clip_range_low, clip_range_high))
    change, sign = log_ratio(logprobs, old_logprobs), advantages.sign()
    clipped = sign * torch.minimum(sign * change, sign * change.clamp(-low, high))
    ratio = row_mean(clipped, rows).exp()
    return -row_mean(advantages, rows) * ratio, statistics(logprobs, old_logprobs, (clipped != change) & (sign != 0))


def sapo(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, tau_pos=SAPO.tau_pos,
         tau_neg=SAPO.tau_neg) -> Loss:
    """Soft adaptive policy optimisation (Gao et al. 2025, arXiv:2511.20347).

    loss = -A (4 / tau) sigmoid(tau (ratio - 1)), tau = tau_pos where A > 0, tau_neg elsewhere, differentiated through
    the ratio: its gradient is -A ratio grad log pi times a gate 4 s (1 - s), s the sigmoid, which is 1 at ratio 1 and
    decays on both sides, replacing a hard clip. The paper uses tau_neg > tau_pos, so that the gate closes sooner for
    failures. Assumes rows of a similar policy: for distant ones every gate is closed. At ratio 1 the gradient is the
    policy gradient for any tau; A = 0 gives 0. Averaged as seq-mean-token-mean. clip_fraction counts gates below 1/2.
    """
    tau = torch.full_like(logprobs, tau_neg).masked_fill(advantages > 0, tau_pos)
    ratio = log_ratio(logprobs, old_logprobs).exp()
    soft = torch.sigmoid(tau * (ratio - 1.0))
    gate = 4.0 * soft * (1.0 - soft)
    return -advantages * 4.0 / tau * soft, statistics(logprobs, old_logprobs, gate < 0.5, soft_gate=gate)


def importance_sampling(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Loss:
    """The unclipped surrogate (Kakade & Langford 2002): loss = -A ratio, the log ratio clamped to +-20.

    At ratio 1 its gradient is the policy gradient, elsewhere that of a first-order approximation: a token's ratio
    weighs its choice, not its prefix, so it assumes a policy close to the one that sampled. Unbiased only for responses
    of one token, with unbounded variance. Intended for small advantages, such as those of distillation. A = 0 gives 0.
    """
    ratio = log_ratio(logprobs, old_logprobs).exp()
    never = torch.zeros_like(ratio)
    return -advantages * ratio, statistics(logprobs, old_logprobs, never, ratio=ratio)


def m2po(logprobs: Tensor, rollout_logprobs: Tensor, advantages: Tensor, rows: Tensor, m2_threshold=M2PO.m2_threshold,
         level=M2PO.level, chosen: Tensor | None = None) -> Loss:
    """Second-moment trust policy optimisation (Zheng et al. 2025, arXiv:2510.01161, alg. 1, eq. 5).

    loss = -M A ratio. Of the tokens that PPO could clip (A > 0 and ratio > 1, or A < 0 and ratio < 1) those with the
    largest (log ratio)^2 get M = 0 until the mean of the remaining ones is at most m2_threshold; M = 1 elsewhere.

    level batch, as the paper has it: the mean over all tokens of the batch, by the log-probs just before the update.
    level sequence: over each row, which needs no forward before the first gradient. The mean over the batch is then
    within the threshold too, and at least as many tokens are dropped: for rows with log ratios (0.3) and (0.1, 0.1,
    0.1), A = 1, batch keeps all (mean 0.03), sequence drops the 0.3 (0.09). The ratio is to the policy that sampled, by
    the engine's log-probs for any bypass_old_logprobs: with one update per batch, the moment measures staleness.
    Assumes, as ppo, a close policy. At ratio 1 nothing is dropped and the gradient is -A; A = 0 gives 0.
    """
    change = log_ratio(logprobs, rollout_logprobs)
    if chosen is None:
        chosen = within_second_moment(logprobs, rollout_logprobs, advantages, rows, m2_threshold, level)
    loss = torch.where(chosen > 0, -advantages * change.exp(), torch.zeros_like(change))
    return loss, statistics(logprobs, rollout_logprobs, ~(chosen > 0))


def within_second_moment(logprobs: Tensor, rollout_logprobs: Tensor, advantages: Tensor, rows: Tensor,
                         m2_threshold=M2PO.m2_threshold, level=M2PO.level) -> Tensor:
    """[N] false on the largest bound moments of each row, or of all given tokens, until the mean of the rest is within
    m2_threshold."""
    change = log_ratio(logprobs.detach(), rollout_logprobs)
    moments, bound = change.square(), advantages * change > 0
    kept, whole = torch.ones_like(bound), torch.zeros_like(rows) if level == "batch" else rows
    for row in whole.unique():
        inside = torch.nonzero(bound & (whole == row)).flatten()
        ascending, order = moments[inside].sort(stable=True)
        means = ascending.cumsum(0) / torch.arange(1, len(inside) + 1, device=moments.device)
        kept[inside[order[means > m2_threshold]]] = False
    return kept


def sppo(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, epsilon=SPPO.epsilon) -> Loss:
    """Softmax PPO with a hard region (Vaswani et al. 2021, arXiv:2108.05828): loss = -A log(ratio) I.

    I = 1 where 1 / (1 + epsilon) <= ratio <= 1 + epsilon, without gradient; tokens outside have no effect, on either
    side. Inside, the gradient is -A grad log pi, the plain policy gradient, which assumes that the region is small. At
    ratio 1 the loss is 0 and its gradient -A; A = 0 gives 0.
    """
    change = logprobs - old_logprobs
    inside = change.detach().abs() <= math.log1p(epsilon)
    loss = torch.where(inside, -advantages * change, torch.zeros_like(change))
    return loss, statistics(logprobs, old_logprobs, ~inside)
