"""Advantages of single tokens: GAE with a critic, discounted returns, distillation from a teacher.

All use action tokens only: environment tokens are skipped, not treated as steps with value 0. The result is a list [R]
per row, 0 at all other tokens. `reward` is either one number per attempt, on its last action token, or token_rewards
[R]; sums over later tokens run through all rows of an attempt (operators/advantages/action_tokens.py). Distillation
uses no reward: there the KL penalty of each token, kl_penalties [R], is subtracted from its advantage.
"""

from __future__ import annotations

from abc import abstractmethod

from pydantic import Field

from ouroboros.operators.advantages.action_tokens import Tokens, action_tokens, whiten
from ouroboros.operators.advantages.query import require, require_finite
from ouroboros.pipeline.settings.arguments.base import Advantage
from ouroboros.pipeline.store.lazy import np, pa


class Ppo(Advantage):
    """Generalised advantage estimation with a critic, whitened over the batch.

    Schulman et al. 2016, arXiv:1506.02438, eq. 16. delta_k = r_k + gamma V_(k+1) - V_k,  G_k = delta_k + gamma lam
    G_(k+1), over the action tokens k of an attempt, those of its rows one after the other, V = 0 after the last.
    A = (G - mean) / sqrt(var + 1e-8) over all action tokens of the batch, var unbiased. returns = G + V, the critic's
    target. Needs `values` [R], V_k the value before action token k. Assumes a critic of the policy that sampled; an
    inaccurate one biases G unless lam = 1. Degenerate: a single action token in the whole batch, or equal G, give A =
    0; with lam = gamma = 1, G is reward to come - V.
    """
    reads = ("values",)
    reads_tokens = True
    gamma: float = Field(1.0, ge=0, le=1, description="discount from one action token to the next")
    lam: float = Field(1.0, ge=0, le=1, description="weight of later estimates; 1 is free of the critic's bias")

    def __call__(self, batch: pa.Table) -> pa.Table:
        tokens = action_tokens(batch)
        values = tokens.take(batch, "values")
        deltas = tokens.rewards(batch) + self.gamma * tokens.following(values) - values
        gains = tokens.sums_from_behind(deltas, self.gamma * self.lam)
        return _answer(batch, tokens, whiten(gains), gains + values)


class Reinforceplusplus(Advantage):
    """REINFORCE++: discounted returns, whitened over all action tokens of the batch.

    Hu 2025, arXiv:2501.03262: G_k = r_k + gamma G_(k+1), k the action tokens of an attempt, through all of its rows.
    A = (G - mean) / sqrt(var + 1e-8) over all action tokens, var unbiased. The baseline is the mean of the batch, so no
    groups are needed; it assumes that all tasks have rewards on one scale. returns = G. Degenerate: equal returns, or a
    single token, give 0.
    """
    reads_tokens = True
    gamma: float = Field(1.0, ge=0, le=1, description="discount from one action token to the next")

    def __call__(self, batch: pa.Table) -> pa.Table:
        tokens = action_tokens(batch)
        gains = tokens.sums_from_behind(tokens.rewards(batch), self.gamma)
        return _answer(batch, tokens, whiten(gains), gains)


class ReinforceplusplusBaseline(Advantage):
    """REINFORCE++ with the mean of the group as a baseline, whitened over the batch.

    Hu 2025, arXiv:2501.03262, v3 and later. A = (x - mean) / sqrt(var + 1e-8) with x = r - mean_group of the attempt at
    each of its action tokens, mean and unbiased var over all action tokens of the batch, so long responses count more.
    Assumes that groups share a scale: unlike grpo, a group of little spread keeps small advantages. Degenerate: a group
    of one has no baseline, x = r; equal x give 0.
    """
    compares_groups = True

    def __call__(self, batch: pa.Table) -> pa.Table:
        require(batch, "group_id")
        require_finite(batch, "reward")
        tokens = action_tokens(batch)
        rewards = batch["reward"].to_numpy()[tokens.attempts.last]
        groups = np.unique(batch["group_id"].to_numpy()[tokens.attempts.last], return_inverse=True)[1]
        counts = np.bincount(groups)
        means = np.where(counts > 1, np.bincount(groups, rewards) / counts, 0.0)
        return _answer(batch, tokens, whiten((rewards - means[groups])[tokens.owners]))


class Remax(Advantage):
    """ReMax: the return less the reward of the greedy response to the task.

    Li et al. 2023, arXiv:2310.10505: A_k = sum of r from k on - reward of the greedy response. The sum goes to the end
    of the attempt, through all of its rows. Needs `baseline_reward`. Unbiased for on-policy rollouts, since the greedy
    response to the task does not depend on the sampled one; assumes that both are scored alike. returns = the sum.
    Degenerate: equal rewards of the two give 0.
    """
    reads = ("baseline_reward",)
    reads_tokens = True

    def __call__(self, batch: pa.Table) -> pa.Table:
        require_finite(batch, "baseline_reward")
        tokens = action_tokens(batch)
        gains = tokens.sums_from_behind(tokens.rewards(batch), 1.0)
        return _answer(batch, tokens, gains - batch["baseline_reward"].to_numpy()[tokens.rows], gains)


class Distillation(Advantage):
    """The log-probs of a teacher, compared with the student's."""
    reads = ("teacher_logprobs",)
    kl_coef: float = Field(1.0, gt=0, description="factor of the advantage")

    def __call__(self, batch: pa.Table) -> pa.Table:
        tokens = action_tokens(batch)
        gap = tokens.take(batch, "teacher_logprobs") - tokens.take(batch, "old_logprobs")
        return _answer(batch, tokens, self.kl_coef * self.gain(gap) - _penalties(batch, tokens))

    @abstractmethod
    def gain(self, gap: np.ndarray) -> np.ndarray:
        """The advantage of each token, before its factor, [N]. gap: log teacher - log student."""


class OnPolicyDistill(Distillation):
    """On-policy distillation: log teacher - log student of each token.

    Gu et al. 2023, arXiv:2306.08543; Agarwal et al. 2023, arXiv:2306.13649. A_t = kl_coef (log teacher - log student),
    the single-sample estimate of -KL(student || teacher) at token t (MiniLLM). Assumes tokens sampled by the student,
    and the same token ids in both models. Rewards are not used. Needs teacher_logprobs, old_logprobs. Degenerate: 0
    where both agree; unbounded below where the teacher's probability is 0.
    """

    def gain(self, gap: np.ndarray) -> np.ndarray:
        return gap


class Jsd(Distillation):
    """Distillation by the generalised Jensen-Shannon divergence to a teacher.

    Agarwal et al. 2023, arXiv:2306.13649, section 2.
    With student q, teacher p, b = lambda_coef and m = b p + (1 - b) q, the divergence at one state is
    D = b sum p log(p / m) + (1 - b) sum q log(q / m). Its derivative with respect to q(x) is, after cancellation,
    (1 - b) log(q(x) / m(x)), so on tokens x drawn from q the policy gradient of -D has the advantage

        A = kl_coef (1 - b) log(m / q),

    positive exactly where the teacher gives the token more probability than the student, 0 where they agree. At b = 0
    and b = 1 D is 0; as in the paper, the limit per weight is used: b = 0 means D / b -> KL(p || q), A = p / q - 1
    (log ratio at most 20), which covers the whole teacher distribution; b = 1 means D / (1 - b) -> KL(q || p),
    A = log(p / q), equal to on_policy_distill. Assumes tokens drawn from q. Needs teacher_logprobs, old_logprobs.
    """
    lambda_coef: float = Field(0.5, ge=0, le=1, description=(
        "share of the teacher in the mixture; at 0 KL(teacher || student), at 1 KL(student || teacher)"))

    def gain(self, gap: np.ndarray) -> np.ndarray:
        if self.lambda_coef == 0:
            return np.expm1(np.minimum(gap, 20.0))
        if self.lambda_coef == 1:
            return gap
        mixed = np.logaddexp(np.log(self.lambda_coef) + gap, np.log1p(-self.lambda_coef))
        return (1 - self.lambda_coef) * mixed


def _penalties(batch: pa.Table, tokens: Tokens) -> np.ndarray:
    """[N] KL penalty of each token for advantages without reward; 0 without a penalty."""
    return tokens.take(batch, "kl_penalties") if "kl_penalties" in batch.column_names else np.zeros(len(tokens.rows))


def _answer(batch: pa.Table, tokens: Tokens, advantage: np.ndarray, returns: np.ndarray | None = None) -> pa.Table:
    """[N] arrays as list columns, with experience_id."""
    columns = {"experience_id": batch["experience_id"], "advantage": tokens.lists(advantage)}
    return pa.table(columns if returns is None else columns | {"returns": tokens.lists(returns)})
