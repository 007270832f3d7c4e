"""Estimates of KL(policy || reference) from the log-probs of sampled tokens, as a loss and as a penalty on the reward.

l = log policy, f = log reference, o = log of the policy that sampled; each estimate is one number a token, in nats,
differentiable in l. Value and gradient are two matters (Schulman 2020, "Approximating KL divergence"). On tokens that
the policy sampled k1 and k3 have the mean KL(policy || reference), but as a loss the mean gradient of k1 is 0, so it
holds nothing; of k2 that of KL(policy || reference); of k3 that of KL(reference || policy); of abs that of sum |p - q|.
"""

import numpy as np
import torch
from torch import Tensor

from operators.arguments import needed_columns
from operators.choice import chosen_estimate
from operators.losses.ratio import MOST


def none(logprobs: Tensor) -> Tensor:
    """0: no reference is needed, and nothing holds the policy to one (no paper; DAPO, arXiv:2503.14476, does without).

    Assumes that the loss alone, by its clip or by fresh rollouts, keeps the policy from drifting. 0 whatever the
    log-probs are.
    """
    return torch.zeros_like(logprobs)


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """l - f (Schulman 2020): noisy, negative for some tokens; 0 where both agree.

    Unbiased in value, assuming tokens that the policy sampled. As a loss its mean gradient is 0: for a penalty alone.
    """
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """(l - f)^2 / 2 (Schulman 2020): biased in value, never negative, 0 where both agree.

    As a loss it has the gradient of KL(policy || reference), assuming tokens that the policy sampled.
    """
    return 0.5 * (logprobs - ref_logprobs).square()


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """e^(f - l) - 1 - (f - l) (Schulman 2020): never negative, 0 where both agree.

    Unbiased in value, assuming tokens that the policy sampled; as a loss it has the gradient of KL(reference ||
    policy). In the exponent f - l is at most 20.
    """
    gap = ref_logprobs - logprobs
    return gap.clamp(max=MOST).expm1() - gap


def low_var_kl(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """k3 (Schulman 2020) with f - l clamped to +-20 and the result to +-10, as veRL has it: no gradient from beyond.

    Assumes that this is rare: what the clamp cuts off makes the value too small. 0 where both agree.
    """
    gap = (ref_logprobs - logprobs).clamp(-MOST, MOST)
    return (gap.expm1() - gap).clamp(-10.0, 10.0)


def absolute(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """|l - f|: the size of the change, whichever way (of Trinity-RFT and veRL, no paper).

    No estimate of the KL. Its mean gradient, assuming tokens that the policy sampled, is that of sum |p - q|, whatever
    the size of the gap; 0 where both agree.
    """
    return (logprobs - ref_logprobs).abs()


def corrected_k3(logprobs: Tensor, ref_logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """clip(e^(l - o), 0, 2) k3: k3 on tokens that an older policy sampled (DeepSeek-V3.2, arXiv:2512.02556).

    Differentiated through the ratio too, which makes value and gradient unbiased for KL(policy || reference) at the
    prefixes that the older policy wrote, assuming ratios below 2. With l = o, as in a penalty, its value is k3's.
    """
    ratio = (logprobs - old_logprobs).clamp(-MOST, MOST).exp().clamp(0.0, 2.0)
    return ratio * k3(logprobs, ref_logprobs)


def adaptive_coefficient(coefficient: float, kl: float, target_kl: float, horizon: float, batch: int) -> float:
    """The next coefficient (Ziegler et al. 2019, arXiv:1909.08593): coefficient (1 + e batch / horizon).

    e = clip(kl / target_kl - 1, -0.2, 0.2). kl: the mean of the last batch, nats, of responses or of tokens, as
    target_kl is meant. batch: its rows; horizon: rows over which it would grow by the error e once. Assumes that a
    larger coefficient lowers the KL. At the target, or without rows, it stays; a coefficient of 0 stays 0 for ever.
    """
    assert np.isfinite(kl), f"the KL of the batch is {kl}"
    error = min(max(kl / target_kl - 1.0, -0.2), 0.2)
    return coefficient * (1.0 + error * batch / horizon)


def penalise(reward: float, logprobs: np.ndarray, ref_logprobs: np.ndarray, action_mask: np.ndarray, estimator: str,
             coefficient: float, token_rewards: np.ndarray | None = None) -> tuple[np.ndarray, float]:
    """(token rewards [R], mean KL per action token in nats) of one response: r_t - coefficient k_t (arXiv:1909.08593).

    reward stands on the last action token, unless token_rewards [R] are given. logprobs, ref_logprobs: [R], of the
    policy that sampled and of the reference; what they hold at other tokens is not read, and the reward there is 0.
    The sum of the answer is the penalised reward of the response, for advantages that compare responses. Assumes that
    both score the distribution that was sampled from. Without an action token all is 0.
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
