"""The optimizer steps of a train batch, as an algorithm orders them (operators/algorithm.py: Algorithm.update).

A batch may have several: passes over its rows, each in mini-batches (PPO, arXiv:1707.06347). Advantages, old log-probs
and importance weights are those of the whole batch before its first step, in every pass; only the ratio to them moves.
Each optimizer step averages over its own rows, as veRL does. Checkpoints and published weights lie between train
batches, so a stage that is taken up repeats a batch from its start, in the same order.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from logging import Logger

import numpy as np

from ouroboros.pipeline.settings.config import Config
from ouroboros.stages.learner.actor import Actor, Result
from ouroboros.stages.learner.critic import Critic, ValueResult, explained_variance
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
        return critic_steps(batch.rollouts, self._parts(batch.rollouts, batch.step),
                            lambda rows: critic.step(rows, rate))

    def policy(self, batch: Batch, trains: bool = True) -> Result:
        """The steps of the policy over a batch; without `trains` all is measured, nothing trained. Collective."""
        lr = learning_rate(batch.step, self.total, self.config.algorithm.optimizer) if trains else 0.0
        if "prox_logprobs" in self.objective.row_columns:
            self.estimates.add_proximal(batch.rows)
        if "estimated_kl" in self.objective.row_columns:
            if (kl := estimated_kl(self.actor, batch.rows)) is None:
                self.log.warning("step %d: all pairs of the train batch have one prompt, so the KL of estimate_kl is "
                                 "not estimated, and is 0", batch.step)
            for row in batch.rows:
                row.columns["estimated_kl"] = kl or 0.0
        if "chosen_tokens" in self.objective.row_columns:
            winners = batch.rows[0::2]
            for row in batch.rows:
                row.columns["chosen_tokens"] = sum(sum(one.mask) for one in winners) / len(winners)
        parts = self._parts(batch.rows, batch.step) if trains else [[range(len(batch.rows))]]
        result = policy_steps(batch.rows, parts,
                              lambda rows: self.actor.step(rows, self.objective, lr, batch.step, trains))
        if self.objective.kl and trains:
            self.objective.kl.steer(result.statistics["kl_loss"], len(batch.rows))
        return result

    def _parts(self, rows: list[Row], step: int) -> list:
        """The mini-batches of each pass over rows; of given responses all of them."""
        if not self.objective.several:
            return [[range(len(rows))]]
        return parts_of(rows, self.config.trainer, self.config.seed, step)


EACH = ("clip_fraction", "kl")  # statistics that are also told of each pass, from 1


def parts_of(rows: Sequence[Row], trainer, seed: int, step: int) -> list[list[np.ndarray]]:
    """The mini-batches of each pass, as places of rows; those without a token to train on are left out.

    The last one of a pass is smaller where the size does not divide the rows. With trainer.shuffle_mini_batches every
    pass has its own order, by seed, train step and pass.
    """
    size, made = trainer.ppo_mini_batch_size or len(rows), []
    for number in range(trainer.ppo_epochs):
        order = np.arange(len(rows))
        if trainer.shuffle_mini_batches:
            order = np.random.default_rng([seed, step, number]).permutation(len(rows))
        cut = [order[begin : begin + size] for begin in range(0, len(rows), size)]
        made.append([part for part in cut if any(any(rows[i].mask) for i in part)])
    return made


def policy_steps(rows: list[Row], parts: list[list[np.ndarray]], step: Callable[[list[Row]], Result]) -> Result:
    """The optimizer steps of a batch; what is measured of all of them.

    Loss and gradient norm are means over steps; statistics means over trained tokens, those of EACH also by pass
    (`clip_fraction_1`). logprobs, entropies: of the first pass, by the weights at that step. tokens: of all 
    """
    if len(parts) == len(parts[0]) == 1 and len(parts[0][0]) == len(rows):
        return step(rows)
    found = [[step([rows[i] for i in part]) for part in of_pass] for of_pass in parts]
    weights = [[sum(sum(rows[i].mask) for i in part) for part in of_pass] for of_pass in parts]
    every = [result for of_pass in found for result in of_pass]
    statistics = _mean(every, [count for counts in weights for count in counts])
    if len(parts) > 1:
        for number, (results, counts) in enumerate(zip(found, weights, strict=True), 1):
            own = _mean(results, counts)
            statistics |= {f"{name}_{number}": own[name] for name in EACH if name in own}
    first = {}
    for name in ("logprobs", "entropies") if every[0].entropies else ("logprobs",):
        first[name] = [np.zeros(0, np.float32)] * len(rows)
        for part, result in zip(parts[0], found[0], strict=True):
            for i, values in zip(part, getattr(result, name), strict=True):
                first[name][i] = values
    compiled = [one.compiled_graphs for one in every if one.compiled_graphs is not None]
    return replace(every[-1], loss=_average(every, "loss"), grad_norm=_average(every, "grad_norm"),
                   statistics=statistics, tokens=sum(one.tokens for one in every), **first,
                   compiled_graphs=sum(compiled) if compiled else None)


def critic_steps(rows: list[Row], parts: list[list[np.ndarray]],
                 step: Callable[[list[Row]], ValueResult]) -> ValueResult:
    """The critic's optimizer steps over a batch, with means over them; how much it explains before the first."""
    every = [step([rows[i] for i in part]) for of_pass in parts for part in of_pass]
    if len(every) == 1:
        return every[0]
    before, returns = (np.concatenate([row.of_actions(name) for row in rows]) for name in ("values", "returns"))
    means = {name: _average(every, name) for name in ("vf_loss", "vf_clipfrac", "critic_grad_norm")}
    return replace(every[-1], **means, vf_explained_variance=explained_variance(before, returns))


def _average(results: Sequence, name: str) -> float:
    return float(np.mean([getattr(one, name) for one in results]))


def _mean(results: list[Result], weights: list[int]) -> dict[str, float]:
    return {name: float(np.average([one.statistics[name] for one in results], weights=weights))
            for name in results[0].statistics}


def estimated_kl(actor: Actor, rows: list[Row]) -> float | None:
    """max(0, mean of log policy - log reference of the mismatched responses), nats, under the current weights; None
    where all pairs have one prompt.

    rows: 2k and 2k + 1 are pair k. Two forwards of all of them. Collective.
    """
    if not (others := mismatched(rows)):
        return None
    policy, reference = actor.score_rows(others), actor.reference_logprobs(others)
    gaps = [float(ours.sum(dtype=np.float64) - theirs.sum(dtype=np.float64))
            for ours, theirs in zip(policy, reference, strict=True)]
    return max(sum(gaps) / len(gaps), 0.0)


def mismatched(rows: list[Row]) -> list[Row]:
    """The prompt of each row with the response of the same kind of the next pair with another prompt; none where all
    pairs have one prompt."""
    prompts = [(row.tokens[: row.prompt_length], row.pictures) for row in rows]
    others = [next((rows[at % len(rows)] for at in range(place + 2, place + len(rows), 2)
                    if prompts[at % len(rows)] != prompt), None) for place, prompt in enumerate(prompts)]
    return [Row(f"{row.id}/mismatched", prompt + other.tokens[other.prompt_length :], row.prompt_length, other.mask,
                pictures=row.pictures)
            for row, (prompt, _), other in zip(rows, prompts, others, strict=True) if other]
