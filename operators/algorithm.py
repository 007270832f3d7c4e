"""What a training step does: the class Algorithm, a method for each part in which algorithms differ, in their order.

    loss of a token = correction * policy loss + kl_coef * KL(policy, reference) + entropy loss

summed with weights that are fixed over the whole batch before it is split. The correction accounts for the rollout
engine's probabilities differing from the trainer's: pi_old / pi_rollout where the loss uses a ratio to the trainer's
own old log-probs, pi_now / pi_rollout, without gradient, where the loss has no ratio. A loss with a ratio to the
rollout's log-probs takes no correction: it would count the same gap twice. Nor, by default, does one that does not read
the sampled token's log-prob. Tokens that rollout_rejection leaves out have no part in any term, those below
top_entropy_quantile none in the policy loss and the entropy loss. The averages divide by all tokens.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ouroboros.operators.aggregation import token_weights_by_kind
from ouroboros.operators.arguments import arguments
from ouroboros.operators.choice import chosen_advantage, chosen_loss
from ouroboros.operators.correction import importance_correction, rejected
from ouroboros.operators.priority import PRIORITIES
from ouroboros.operators.sampling import chosen_strategy, selected
from ouroboros.operators.selection import of_high_entropy
from ouroboros.operators.terms import KLTerm, call, correction_arguments, entropy_loss, refuse_parameters
from ouroboros.pipeline.settings.algorithms import LIKE, own_class
from ouroboros.pipeline.settings.arguments.base import Loss
from ouroboros.pipeline.settings.arguments.users import needed_columns
from ouroboros.pipeline.settings.columns import OF_THE_FORWARD, ratio_column
from ouroboros.pipeline.settings.train_batch import REPLAY, train_batch
from ouroboros.pipeline.settings.trainer import several_steps
from ouroboros.pipeline.store.errors import pick


class Algorithm:
    """GRPO (arXiv:2402.03300), and every algorithm that differs from it in named functions alone (conf/algorithm).

    For each train step the trainer calls, in this order, `select`, `estimates`, `advantages`, `choose`, `weights`, and
    with `update` `loss`; `priority` orders what is replayed. A subclass, which algorithm.algorithm_type=module:Class
    names, has the methods in which it differs. like: the type in conf/algorithm of which it is a variant: it trains on
    the same data, and takes the same values for settings that are null. reads: columns that models compute for it
    (values of a critic, teacher_logprobs, entropies, mean_scores), besides those of its advantage. columns: those of
    rows that `choose` and `loss` read, besides those of the named functions. state: what persists between steps, values
    that JSON holds, by name: every checkpoint keeps it, and a resumed stage begins with it.
    """

    like: ClassVar[str] = LIKE
    reads: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: Any, state: dict[str, Any] | None = None):
        """Raises ConfigError for unknown or contradictory settings."""
        self.config, self.settings, self.state = config, config.algorithm, dict(state or {})
        given_tokens, on_rollouts = self.settings.on_given_tokens, self.settings.on_rollouts
        self.name = "sft" if given_tokens else self.settings.policy_loss_fn
        if not given_tokens:
            refuse_parameters(self.settings, "policy_loss_fn")
        self.policy_loss = chosen_loss(self.name, {} if given_tokens else self.settings.policy_loss_fn_args)
        own = inspect.unwrap(self.policy_loss)
        self.declared = own if isinstance(own, Loss) else Loss  # a user's function declares nothing
        self.kl, self.penalty = (
            KLTerm.of(self.settings, part, self.state.get(part)) if used else KLTerm("none")
            for part, used in (("kl_loss_fn", not given_tokens), ("kl_penalty_fn", on_rollouts)))
        self.entropy_loss, self.needs_entropy_gradient = entropy_loss(self.settings)
        self.correction = correction_arguments(config)
        self.several = on_rollouts and several_steps(config.trainer)
        ratio = ratio_column(self.settings, needed_columns(self.policy_loss))
        self.corrected = "old_logprobs" if ratio == "old_logprobs" else "prox_logprobs"
        self.rejection = self.settings.rollout_rejection.bounds if on_rollouts else {}
        self.mixes = bool(self.correction or self.rejection) and self.settings.sample_strategy == "mix"
        self.by_kind = "is_expert" in (*needed_columns(self.policy_loss), *self.columns)
        self.choices: dict[str, Callable[..., Tensor]] = {}  # column -> what selects tokens by it, over the whole batch
        if not given_tokens and self.declared.chooses_tokens:
            self.choices["chosen"] = self.declared.choose
        if on_rollouts and self.settings.top_entropy_quantile < 1:
            self.choices["teaches"] = partial(of_high_entropy, quantile=self.settings.top_entropy_quantile)
        if on_rollouts:
            self.strategy, self.query = chosen_strategy(self.settings)
            refuse_parameters(self.settings, "advantage_fn")
            self.advantage = chosen_advantage(self.settings.advantage_fn, self.settings.advantage_fn_args)
        # whether advantages depend on those of the batches before
        self.keeps_state = on_rollouts and getattr(self.advantage, "keeps_state", False)
        of_pairs = "seq-mean-token-mean" if self.settings.on_pairs else None  # for a user's loss; ours have their own
        self.aggregation = self.settings.loss_agg_mode or of_pairs or self.declared.aggregation
        # a constant, as the mode requires: the longest response would differ between batches
        sums = self.aggregation == "seq-mean-token-sum-norm"
        self.normalizer = float(config.model.max_response_tokens) if sums else None

    @classmethod
    def of(cls, config: Any, state: dict[str, Any] | None = None) -> "Algorithm":
        """The algorithm of a stage's settings: this class, or the user's."""
        return (own_class(config.algorithm.algorithm_type) or cls)(config, state)

    def saved(self) -> dict[str, Any]:
        """The state for a checkpoint: `state`, with the coefficients of the KL terms, which may adapt."""
        return self.state | {"kl_loss_fn": self.kl.kl_coef, "kl_penalty_fn": self.penalty.kl_coef}

    def select(self, step: int, candidates: pa.Table, experts: int) -> tuple[list[str], list[int]]:
        """Which rows the batch of a step has: ids of rollouts, and places of demonstrations, 0 .. experts - 1.

        candidates: the usable rollouts that the schedule provides, with the columns of experience, position, and as
        weights_version the oldest of their group. It depends on its arguments alone: a resumed stage selects the same.
        """
        # on recorded experience the stage cuts batches of its own size and mixes nothing in (check/batch.py)
        size = train_batch(self.config).total if self.strategy == "mix" else 0
        return selected(self.query(step, size), candidates, experts)

    def priority(self) -> str:
        """A SQL expression of group_id, weights_version and use_count: which groups are replayed first; NULL: never."""
        replay = self.config.buffer.trainer_input.experience_buffer.replay_buffer
        function = pick(PRIORITIES, replay.priority_fn, f"{REPLAY}.priority_fn")
        return function(**arguments("priority_fn", replay.priority_fn, function, replay.priority_fn_args,
                                    f"{REPLAY}.priority_fn_args"))

    @property
    def estimates(self) -> frozenset[str]:
        """The columns that models compute before advantages: ref_logprobs, old_logprobs of the trainer, entropies,
        mean_scores, values of a critic, teacher_logprobs."""
        found = {"ref_logprobs"} if "ref_logprobs" in self.row_columns or self.kl or self.penalty else set()
        if self.settings.on_rollouts:  # stages on given rows have no such settings
            found |= {*self.settings.reads, *(() if self.settings.bypass_old_logprobs else ("old_logprobs",))}
        return frozenset(found)

    def advantages(self, batch: pa.Table) -> pa.Table:
        """A table of experience_id and advantage (operators/advantages) of the rows of a batch, whose rewards are
        weighed and penalised already. A row that it leaves out is not trained on."""
        return self.advantage(batch, *[self.state] * self.keeps_state)

    def choose(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        """Which tokens teach, over the whole batch: columns [N] that `loss` reads, by name.

        columns: [N] of all action tokens: logprobs and entropy of the weights before the step, rows, and those of rows
        that `columns` and the named functions read.
        """
        return {name: call(function, columns) for name, function in self.choices.items()}

    def weights(self, counts: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """The weight of each action token of a row in the loss, float64 [R] (operators/aggregation.py).

        counts: action tokens of the rows of the whole batch [R]. kinds: bool [R], rows of an expert, where the loss
        has both kinds averaged separately.
        """
        return token_weights_by_kind(self.aggregation, counts, kinds, self.normalizer)

    def loss(self, columns: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each action token of a micro-batch [N], and statistics of [N].

        columns: name -> [N], from rows and the model's forward (pipeline/settings/columns.py).
        """
        of_all = {"chosen": "chosen" in self.choices, "estimated_kl": self.declared.estimates_kl}
        given = {name: columns[name] for name, is_given in of_all.items() if is_given}
        loss, statistics = call(partial(self.policy_loss, **given), columns)
        teaches = columns["teaches"] if "teaches" in self.choices else 1.0
        if self.correction:
            loss = loss * self._correction(columns)
        loss = loss * teaches
        if self.kl:
            kl = self._kl(columns)
            loss, statistics = loss + self.kl.kl_coef * kl, statistics | {"kl_loss": kl.detach()}
        if self.needs_entropy_gradient:
            loss = loss + call(self.entropy_loss, columns) * teaches
        if self.rejection:
            out = rejected(columns[self.corrected], columns["rollout_logprobs"], columns["rows"], self.rejection)
            out = out & ~columns["is_expert"] if self.mixes else out
            loss, statistics = torch.where(out, 0.0, loss), statistics | {"rejected": out.to(loss.dtype)}
        return loss, statistics

    def update(self, learner: Any, batch: Any) -> tuple[Any, Any]:
        """The optimizer steps of a batch: what the policy's measured, and the critic's or None.

        learner: makes the steps, by policy(batch, trains=True) and critic(batch) (stages/learner/steps.py). batch: with
        step, from 1. A critic (PPO, arXiv:1707.06347) learns first, alone for trainer.critic_warmup steps.
        """
        if "values" not in self.estimates:
            return learner.policy(batch), None
        values = learner.critic(batch)
        return learner.policy(batch, batch.step > self.config.trainer.critic_warmup), values

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns that rows must have; the rest comes from the model's forward. Where a batch has several steps
        (stages/learner/steps.py), prox_logprobs are those before the first one."""
        parts = [self.policy_loss, self.entropy_loss, self.kl.function]
        names = {name for part in parts for name in needed_columns(part)}
        if self.correction or self.rejection:
            names |= {self.corrected, "rollout_logprobs", *(("is_expert",) if self.mixes else ())}
        names |= {"estimated_kl"} if self.declared.estimates_kl else set()
        names |= {*self.choices, *self.chosen_by}
        names |= {"teacher_top_ids"} if "top_logprobs" in names else set()
        held = {"prox_logprobs"} & names if self.several else set()
        return tuple(sorted(names - {*OF_THE_FORWARD, "scores", "top_logprobs"} | held))

    @property
    def chosen_by(self) -> set[str]:
        """The columns that `choose` reads."""
        return {*self.columns, *(name for one in self.choices.values() for name in needed_columns(one))}

    @property
    def chooses(self) -> bool:
        """Whether tokens are chosen over the whole batch, which takes a forward before the step."""
        return bool(self.choices) or type(self).choose is not Algorithm.choose

    def _correction(self, columns: dict[str, Tensor]) -> Tensor:
        """[N]; 1 on demonstrations, which no engine sampled."""
        weights, _ = importance_correction(
            columns[self.corrected], columns["rollout_logprobs"], columns["rows"], **self.correction)
        return torch.where(columns["is_expert"], 1.0, weights) if self.mixes else weights

    def _kl(self, columns: dict[str, Tensor]) -> Tensor:
        """[N]; 0 on demonstrations, whose states are not the policy's own."""
        estimator = self.kl.function
        if not self.by_kind:
            return call(estimator, columns)
        logprobs, is_expert = columns["logprobs"], columns["is_expert"]
        near = torch.where(is_expert, logprobs.detach(), columns["ref_logprobs"])  # so that no exponential overflows
        return torch.where(is_expert, torch.zeros_like(logprobs), call(estimator, columns | {"ref_logprobs": near}))
