"""The optimizer steps of a train batch, as an algorithm orders them (operators/algorithm.py: Algorithm.update)."""

from logging import Logger

from ouroboros.pipeline.settings.config import Config
from ouroboros.stages.learner import mismatched, passes
from ouroboros.stages.learner.actor import Actor, Result
from ouroboros.stages.learner.critic import Critic, ValueResult
from ouroboros.stages.learner.engine.batch import Batch, Row
from ouroboros.stages.learner.engine.rates import learning_rate
from ouroboros.stages.learner.estimates import Estimates
from ouroboros.stages.learner.objective import Objective


class Steps:
    """One rank. total: optimizer steps of the stage, on which the learning rate depends."""

    def __init__(self, config: Config, objective: Objective, actor: Actor, estimates: Estimates, total: int,
                 log: Logger):
        self.config, self.objective, self.actor = config, objective, actor
        self.estimates, self.total, self.log = estimates, total, log

    def critic(self, batch: Batch) -> ValueResult:
        """The steps of the critic over the rollouts of a batch. Collective."""
        critic: Critic = self.estimates.critic
        rate = learning_rate(batch.step, self.total, self.config.trainer.critic.optimizer)
        return passes.critic_steps(batch.rollouts, self._parts(batch.rollouts, batch.step),
                                   lambda rows: critic.step(rows, rate))

    def policy(self, batch: Batch, trains: bool = True) -> Result:
        """The steps of the policy over a batch; without `trains` everything is measured and nothing trained.
        Collective."""
        lr = learning_rate(batch.step, self.total, self.config.algorithm.optimizer) if trains else 0.0
        if "prox_logprobs" in self.objective.row_columns:
            self.estimates.add_proximal(batch.rows)
        if "estimated_kl" in self.objective.row_columns:
            self._estimate_kl(batch)
        parts = self._parts(batch.rows, batch.step) if trains else [[range(len(batch.rows))]]
        result = passes.policy_steps(batch.rows, parts,
                                     lambda rows: self.actor.step(rows, self.objective, lr, batch.step, trains))
        if self.objective.kl and trains:
            self.objective.kl.steer(result.statistics["kl_loss"], len(batch.rows))
        return result

    def _estimate_kl(self, batch: Batch) -> None:
        kl = mismatched.estimated_kl(self.actor, batch.rows)
        if kl is None:
            self.log.warning("step %d: all pairs of the train batch have one prompt, so the KL of estimate_kl is not "
                             "estimated, and is 0", batch.step)
        for row in batch.rows:
            row.columns["estimated_kl"] = kl or 0.0

    def _parts(self, rows: list[Row], step: int) -> list:
        """The mini-batches of each pass over rows; of given responses all of them."""
        if not self.objective.several:
            return [[range(len(rows))]]
        return passes.parts_of(rows, self.config.trainer, self.config.seed, step)
