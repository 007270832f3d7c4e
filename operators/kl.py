"""Estimates of KL(policy || reference) from sampled tokens, for losses and reward penalties.

l = log policy, f = log reference, o = log of the policy that sampled; each estimate is one number per token, in nats,
differentiable in l. Value and gradient must be considered separately (Schulman 2020, "Approximating KL divergence"). On
on-policy tokens k1 and k3 have the mean KL(policy || reference). As a loss, the mean gradient of k1 is 0, so it has no
effect; that of k2 is the gradient of KL(policy || reference), that of k3 the gradient of KL(reference || policy), and
that of abs the gradient of sum |p - q|.
"""

import numpy as np
import torch
from torch import Tensor

from ouroboros.operators.choice import chosen_estimate
from ouroboros.operators.losses.ratio import MOST
from ouroboros.pipeline.settings.arguments.users import needed_columns


def none(logprobs: Tensor) -> Tensor:
    """0: needs no reference, and does not constrain the policy (no paper; as in DAPO, arXiv:2503.14476).

    Assumes that the loss itself, by clipping or by fresh rollouts, keeps the policy from drifting.
    """
    return torch.zeros_like(logprobs)


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """l - f (Schulman 2020): high variance, negative for some tokens; 0 where both agree.

    Unbiased in value, assuming on-policy tokens. As a loss its mean gradient is 0: use it only as a penalty.
    """
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """(l - f)^2 / 2 (Schulman 2020): biased in value, never negative, 0 where both agree.

    As a loss it has the gradient of KL(policy || reference), assuming on-policy tokens.
    """
    return 0.5 * (logprobs - ref_logprobs).square()


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """e^(f - l) - 1 - (f - l) (Schulman 2020): never negative, 0 where both agree.

    Unbiased in value, assuming on-policy tokens; as a loss it has the gradient of KL(reference || policy). In the
    exponent f - l is at most 20.
    """
    gap = ref_logprobs - logprobs
    return gap.clamp(max=MOST).expm1() - gap


def low_var_kl(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """k3 (Schulman 2020) with f - l clamped to +-20 and the result to +-10, as in veRL.

    No gradient beyond the clamps. Assumes that clamping is rare: it biases the value downwards. 0 where both agree.
    """
    gap = (ref_logprobs - logprobs).clamp(-MOST, MOST)
    return (gap.expm1() - gap).clamp(-10.0, 10.0)


def absolute(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """|l - f|: the size of the change in either direction (of Trinity-RFT and veRL, no paper).

    Not an estimate of the KL. Its mean gradient, assuming on-policy tokens, is that of sum |p - q|, for any size of the
    gap; 0 where both agree.
    """
    return (logprobs - ref_logprobs).abs()


def corrected_k3(logprobs: Tensor, ref_logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """clip(e^(l - o), 0, 2) k3: k3 on tokens of an older policy (DeepSeek-V3.2, arXiv:2512.02556).

    The ratio is differentiated too, which makes value and gradient unbiased for KL(policy || reference) at the older
    policy's prefixes, assuming ratios below 2. With l = o, as in a penalty, its value is that of k3.
    """
    ratio = (logprobs - old_logprobs).clamp(-MOST, MOST).exp().clamp(0.0, 2.0)
    return ratio * k3(logprobs, ref_logprobs)


def adaptive_coefficient(coefficient: float, kl: float, target_kl: float, horizon: float, batch: int) -> float:
    """The next coefficient: coefficient (1 + e batch / horizon) (Ziegler et al. 2019, arXiv:1909.08593).

    e = clip(kl / target_kl - 1, -0.2, 0.2). kl: the mean of the last batch, nats, per response or per token, as
    target_kl. batch: its rows; horizon: rows over which the coefficient grows by the factor 1 + e. Assumes that a
    larger coefficient lowers the KL. At the target, or without rows, it is unchanged; a coefficient of 0 stays 0.
    """
    assert np.isfinite(kl), f"the KL of the batch is {kl}"
    error = min(max(kl / target_kl - 1.0, -0.2), 0.2)
    return coefficient * (1.0 + error * batch / horizon)


def penalise(reward: float, logprobs: np.ndarray, ref_logprobs: np.ndarray, action_mask: np.ndarray, estimator: str,
             coefficient: float, token_rewards: np.ndarray | None = None) -> tuple[np.ndarray, float]:
    """(token rewards [R], mean KL per action token, nats): r_t - coefficient k_t (arXiv:1909.08593).

    reward is placed on the last action token, unless token_rewards [R] are given. logprobs, ref_logprobs: [R], of the
    policy that sampled and of the reference; their values at other tokens are ignored, and the reward there is 0. The
    sum of the token rewards is the penalised reward of the response, for advantages that compare responses. Assumes
    that both score the distribution that was sampled from. Without action tokens everything is 0.
    """
    acts = np.flatnonzero(action_mask)
    rewards = np.zeros(len(action_mask))
    if not len(acts):
        return rewards, 0.0
    if token_rewards is None:
        rewards[acts[-1]] = reward
    else:
        rewards[acts] = np.asarray(token_rewards, np.float64)[acts]
    given = torch.from_numpy(np.asarray(logprobs, np.float64)[acts])
    columns = {"logprobs": given, "old_logprobs": given,
               "ref_logprobs": torch.from_numpy(np.asarray(ref_logprobs, np.float64)[acts])}
    function = chosen_estimate(KL_ESTIMATORS, estimator, "algorithm.kl_penalty_fn")
    kl = function(**{name: columns[name] for name in needed_columns(function)}).numpy()
    rewards[acts] -= coefficient * kl
    return rewards, float(kl.mean())


KL_ESTIMATORS = {
    "abs": absolute,
    "corrected_k3": corrected_k3,
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "low_var_kl": low_var_kl,
    "none": none,
}
