"""Six algorithms as a user writes them: subclasses of Algorithm, with what differs from GRPO or from their type."""

import numpy as np
import pyarrow as pa
import torch

from ouroboros.operators.advantages.token import Ppo as Gae
from ouroboros.operators.algorithm import Algorithm
from ouroboros.operators.losses.mixture import chord_mu


def own_rewards(batch: pa.Table) -> pa.Table:
    """The reward as advantage."""
    return batch.select(["experience_id", "reward"]).rename_columns(["experience_id", "advantage"])


class OwnPpo(Algorithm):
    """A second network: it learns first, twice over each batch, and its values are what advantages compare with."""

    reads = ("values",)

    def advantages(self, batch: pa.Table) -> pa.Table:
        return Gae()(batch)

    def update(self, learner, batch):
        values = [learner.critic(batch) for _ in range(2)][-1]
        return learner.policy(batch, trains=batch.step > 1), values


class OwnKlCov(Algorithm):
    """Tokens that are chosen over the whole batch: the one of the largest covariance has a KL term."""

    columns = ("advantages", "old_logprobs", "held")

    def choose(self, columns):
        logprobs, advantages = columns["logprobs"], columns["advantages"]
        covariance = (logprobs - logprobs.mean()) * (advantages - advantages.mean())
        return {"held": covariance == covariance.max()}

    def loss(self, columns):
        change = columns["logprobs"] - columns["old_logprobs"]
        return -columns["advantages"] * change.exp() + change.abs() * (columns["held"] > 0), {}


class OwnChord(Algorithm):
    """Rows of two kinds: every demonstration in each batch, each kind averaged by itself, and a share by step."""

    columns = ("is_expert", "advantages", "old_logprobs")

    def select(self, step, candidates, experts):
        return candidates["experience_id"].to_pylist(), list(range(experts))

    def loss(self, columns):
        mu, expert = chord_mu(int(columns["step"]), 4, 4, 1.0, 0.0), columns["is_expert"]
        imitated, (reinforced, found) = -mu * columns["logprobs"], super().loss(columns)
        return torch.where(expert, imitated, (1 - mu) * reinforced), found


class OwnGkd(Algorithm):
    """A teacher's distributions in the loss: the reverse KL in place of the forward one."""

    like = "gkd"

    def loss(self, columns):
        ours, theirs = columns["top_logprobs"], columns["teacher_top_logprobs"]
        return (ours.exp() * (ours - theirs)).sum(-1), {}


class OwnRewardModel(Algorithm):
    """Scores in place of log-probs, of pairs: a hinge on the margin; the mean of scores is a state that persists."""

    like = "reward_model"

    def loss(self, columns):
        scores = columns["scores"]
        self.state["mean"] = 0.5 * self.state.get("mean", 0.0) + 0.5 * float(scores.detach().mean())
        margin = scores[0::2] - scores[1::2]
        return (1 - margin).clamp(min=0).repeat_interleave(2), {}

    def weights(self, counts, kinds):
        return np.full(len(counts), 1 / len(counts))


class OwnSft(Algorithm):
    """The likelihood, times more the lower a running mean of log-probs is, which persists."""

    like = "sft"

    def loss(self, columns):
        logprobs, mean = columns["logprobs"], self.state.get("mean", 0.0)
        self.state["mean"] = 0.5 * mean + 0.5 * float(logprobs.detach().mean())
        return (mean - 1) * logprobs, {}
