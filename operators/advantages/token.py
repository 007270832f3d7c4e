"""Advantages of single tokens: GAE with a critic, discounted returns, distillation from a teacher.

All use action tokens only: environment tokens are skipped, not treated as steps with value 0. The result is a list [R]
per row, 0 at all other tokens. `reward` is either one number per attempt, on its last action token, or token_rewards
[R]; sums over later tokens run through all rows of an attempt (operators/advantages/action_tokens.py). Distillation
uses no reward: there the KL penalty of each token, kl_penalties [R], is subtracted from its advantage.
"""

import numpy as np
import pyarrow as pa

from ouroboros.operators.advantages.action_tokens import Tokens, action_tokens, whiten
from ouroboros.operators.advantages.query import require, require_finite
from ouroboros.pipeline.settings.arguments.advantages import Jsd, OnPolicyDistill, Ppo, Reinforceplusplus

JSD, DISTILL, PPO, PLUSPLUS = Jsd(), OnPolicyDistill(), Ppo(), Reinforceplusplus()


def ppo(batch: pa.Table, gamma=PPO.gamma, lam=PPO.lam) -> pa.Table:
    """Generalised advantage estimation, whitened (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

    delta_k = r_k + gamma V_(k+1) - V_k,  G_k = delta_k + gamma lam G_(k+1), over the action tokens k of an attempt,
    those of its rows one after the other, V = 0 after the last.
    A = (G - mean) / sqrt(var + 1e-8) over all action tokens of the batch, var unbiased. returns = G + V, the critic's
    target. Needs `values` [R], V_k the value before action token k. Assumes a critic of the policy that sampled; an
    inaccurate one biases G unless lam = 1. Degenerate: a single action token in the whole batch, or equal G, give A =
    0; with lam = gamma = 1, G is reward to come - V.
    """
    tokens = action_tokens(batch)
    values = tokens.take(batch, "values")
    deltas = tokens.rewards(batch) + gamma * tokens.following(values) - values
    gains = tokens.sums_from_behind(deltas, gamma * lam)
    return _answer(batch, tokens, whiten(gains), gains + values)


def reinforceplusplus(batch: pa.Table, gamma=PLUSPLUS.gamma) -> pa.Table:
    """REINFORCE++ (Hu 2025, arXiv:2501.03262): G_k = r_k + gamma G_(k+1), whitened over the batch.

    k: the action tokens of an attempt, through all of its rows. A = (G - mean) / sqrt(var + 1e-8) over all action
    tokens, var unbiased. The baseline is the mean of the batch, so no groups are needed; it assumes that all tasks have
    rewards on one scale. returns = G. Degenerate: equal returns, or a single token, give 0.
    """
    tokens = action_tokens(batch)
    gains = tokens.sums_from_behind(tokens.rewards(batch), gamma)
    return _answer(batch, tokens, whiten(gains), gains)


def reinforceplusplus_baseline(batch: pa.Table) -> pa.Table:
    """REINFORCE++-baseline (Hu 2025, arXiv:2501.03262, v3 and later): r - mean_group, whitened over the batch.

    A = (x - mean) / sqrt(var + 1e-8) with x = r - mean_group of the attempt at each of its action tokens, mean and
    unbiased var over all action tokens of the batch, so long responses count more. Assumes that groups share a scale:
    unlike grpo, a group of little spread keeps small advantages. Degenerate: a group of one has no baseline, x = r;
    equal x give 0.
    """
    require(batch, "group_id")
    require_finite(batch, "reward")
    tokens = action_tokens(batch)
    rewards = batch["reward"].to_numpy()[tokens.attempts.last]
    groups = np.unique(batch["group_id"].to_numpy()[tokens.attempts.last], return_inverse=True)[1]
    counts = np.bincount(groups)
    means = np.where(counts > 1, np.bincount(groups, rewards) / counts, 0.0)
    return _answer(batch, tokens, whiten((rewards - means[groups])[tokens.owners]))


def remax(batch: pa.Table) -> pa.Table:
    """ReMax (Li et al. 2023, arXiv:2310.10505): A_k = sum of r from k on - reward of the greedy response.

    The sum goes to the end of the attempt, through all of its rows.
    Needs `baseline_reward`. Unbiased for on-policy rollouts, since the greedy response to the task does not depend on
    the sampled one; assumes that both are scored alike. returns = the sum. Degenerate: equal rewards of the two give 0.
    """
    require_finite(batch, "baseline_reward")
    tokens = action_tokens(batch)
    gains = tokens.sums_from_behind(tokens.rewards(batch), 1.0)
    return _answer(batch, tokens, gains - batch["baseline_reward"].to_numpy()[tokens.rows], gains)


def on_policy_distill(batch: pa.Table, kl_coef=DISTILL.kl_coef) -> pa.Table:
    """On-policy distillation (Gu et al. 2023, arXiv:2306.08543; Agarwal et al. 2023, arXiv:2306.13649).

    A_t = kl_coef (log teacher - log student), the single-sample estimate of -KL(student || teacher) at token t
    (MiniLLM). Assumes tokens sampled by the student, and the same token ids in both models. Rewards are not used. Needs
    teacher_logprobs, old_logprobs. Degenerate: 0 where both agree; unbounded below where the teacher's probability is
    0.
    """
    tokens = action_tokens(batch)
    student, teacher = tokens.take(batch, "old_logprobs"), tokens.take(batch, "teacher_logprobs")
    return _answer(batch, tokens, kl_coef * (teacher - student) - _penalties(batch, tokens))


def jsd(batch: pa.Table, lambda_coef=JSD.lambda_coef, kl_coef=JSD.kl_coef) -> pa.Table:
    """Distillation by the generalised Jensen-Shannon divergence (Agarwal et al. 2023, arXiv:2306.13649).

    With student q, teacher p, b = lambda_coef and m = b p + (1 - b) q (section 2), the divergence at one state is
    D = b sum p log(p / m) + (1 - b) sum q log(q / m). Its derivative with respect to q(x) is, after cancellation,
    (1 - b) log(q(x) / m(x)), so on tokens x drawn from q the policy gradient of -D has the advantage

        A = kl_coef (1 - b) log(m / q),

    positive exactly where the teacher gives the token more probability than the student, 0 where they agree. At b = 0
    and b = 1 D is 0; as in the paper, the limit per weight is used: b = 0 means D / b -> KL(p || q), A = p / q - 1
    (log ratio at most 20), which covers the whole teacher distribution; b = 1 means D / (1 - b) -> KL(q || p),
    A = log(p / q), equal to on_policy_distill. Assumes tokens drawn from q. Needs teacher_logprobs, old_logprobs.
    """
    tokens = action_tokens(batch)
    gap = tokens.take(batch, "teacher_logprobs") - tokens.take(batch, "old_logprobs")  # log(p / q)
    if lambda_coef == 0:
        gain = np.expm1(np.minimum(gap, 20.0))
    elif lambda_coef == 1:
        gain = gap
    else:
        gain = (1 - lambda_coef) * np.logaddexp(np.log(lambda_coef) + gap, np.log1p(-lambda_coef))
    return _answer(batch, tokens, kl_coef * gain - _penalties(batch, tokens))


def _penalties(batch: pa.Table, tokens: Tokens) -> np.ndarray:
    """[N] KL penalty of each token for advantages without reward; 0 without a penalty."""
    return tokens.take(batch, "kl_penalties") if "kl_penalties" in batch.column_names else np.zeros(len(tokens.rows))


def _answer(batch: pa.Table, tokens: Tokens, advantage: np.ndarray, returns: np.ndarray | None = None) -> pa.Table:
    """[N] arrays as list columns, with experience_id."""
    columns = {"experience_id": batch["experience_id"], "advantage": tokens.lists(advantage)}
    return pa.table(columns if returns is None else columns | {"returns": tokens.lists(returns)})
