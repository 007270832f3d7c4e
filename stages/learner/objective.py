"""The loss of an optimizer step, assembled from the named parts of an algorithm, per action token.

    loss = correction * policy loss + kl_coef * KL(policy, reference) + entropy loss

Summed with the weights of one aggregation (operators/aggregation.py), fixed over the whole batch before it is split.
The correction accounts for the rollout engine's probabilities differing from the trainer's: pi_old / pi_rollout where
the loss uses a ratio to the trainer's own old log-probs, pi_now / pi_rollout, without gradient, where the loss has no
ratio. A loss with a ratio to the rollout's log-probs takes no correction: it would count the same gap twice. Nor, by
default, does one that does not read the sampled token's log-prob.

Tokens that rollout_rejection leaves out have no part in any of the terms, those below top_entropy_quantile none in the
policy loss and the entropy loss. The averages divide by all tokens.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ouroboros.operators.arguments import arguments
from ouroboros.operators.choice import chosen, chosen_estimate, chosen_loss
from ouroboros.operators.correction import Mismatch, importance_correction, mismatch, rejected
from ouroboros.operators.entropy import ENTROPY_LOSSES
from ouroboros.operators.kl import KL_ESTIMATORS, adaptive_coefficient
from ouroboros.operators.selection import of_high_entropy
from ouroboros.pipeline.settings.algorithms import DEMONSTRATED, GIVEN, PAIR_TYPES, SCORING
from ouroboros.pipeline.settings.arguments.base import Loss
from ouroboros.pipeline.settings.arguments.terms import Kl
from ouroboros.pipeline.settings.arguments.users import needed_columns
from ouroboros.pipeline.settings.columns import OF_THE_FORWARD, ratio_column, ratio_problems, wrong_parameters
from ouroboros.pipeline.settings.declared import TABLES
from ouroboros.pipeline.settings.trainer import several_steps
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.packing import Aggregation

KL = Kl()


@dataclass
class KLTerm:
    """A KL term to the reference with its coefficient: `kl_loss_fn` or `kl_penalty_fn` with `*_args`.

    estimator: name in operators/kl.py. kl_coef: weight in the loss, or in the reward. adaptive: kl_coef is adjusted by
    the measured KL towards target_kl, nats per token; horizon: rows (ouroboros.operators.kl.adaptive_coefficient).
    """

    estimator: str
    kl_coef: float = KL.kl_coef
    adaptive: bool = KL.adaptive
    target_kl: float | None = KL.target_kl
    horizon: float | None = KL.horizon

    @classmethod
    def of(cls, algorithm, part: str, kl_coef: float | None = None) -> "KLTerm":
        """part: kl_loss_fn or kl_penalty_fn. kl_coef: of a resumed stage, where an adaptive one has changed.

        Raises ConfigError for unknown or contradictory settings.
        """
        refuse_parameters(algorithm, part)
        name = getattr(algorithm, part)
        bound = Kl.bind(name, getattr(algorithm, f"{part}_args"), f"algorithm.{part}_args")
        return cls(name, **dict(bound) | ({} if kl_coef is None else {"kl_coef": kl_coef}))

    @property
    def function(self) -> Callable[..., Tensor]:
        """The function that estimates the KL at each token [N]."""
        return chosen_estimate(KL_ESTIMATORS, self.estimator, "KL estimator")

    def __bool__(self) -> bool:
        return self.estimator != "none"

    def steer(self, kl: float, rows: int) -> None:
        """Updates kl_coef for the next step from the mean KL of this one, over `rows` rows."""
        if self.adaptive:
            self.kl_coef = adaptive_coefficient(self.kl_coef, kl, self.target_kl, self.horizon, rows)


class Objective:
    """The loss of a micro-batch's action tokens."""

    def __init__(self, config, kl_coef: float | None = None):
        """config: the stage's settings (algorithm, model). kl_coef: of the KL loss, as in KLTerm.of."""
        algorithm = config.algorithm
        demonstrated, given_rows = algorithm.algorithm_type in DEMONSTRATED, algorithm.algorithm_type in GIVEN
        self.name = "sft" if demonstrated else algorithm.policy_loss_fn
        if not demonstrated:
            refuse_parameters(algorithm, "policy_loss_fn")
        self.policy_loss = chosen_loss(self.name, {} if demonstrated else algorithm.policy_loss_fn_args)
        own = inspect.unwrap(self.policy_loss)
        self.declared = own if isinstance(own, Loss) else Loss  # a user's function declares nothing
        self.kl = KLTerm("none") if demonstrated else KLTerm.of(algorithm, "kl_loss_fn", kl_coef)
        self.entropy_loss, self.needs_entropy_gradient = _entropy_loss(algorithm, demonstrated)
        self.correction = correction_arguments(algorithm, config)
        self.several = not given_rows and several_steps(config.trainer)
        ratio = ratio_column(algorithm, needed_columns(self.policy_loss))
        self.corrected = "old_logprobs" if ratio == "old_logprobs" else "prox_logprobs"
        self.rejection = {} if given_rows else algorithm.rollout_rejection.bounds
        self.mixes = bool(self.correction or self.rejection) and algorithm.sample_strategy == "mix"
        self.choices = {} if given_rows else _choices(self.declared, algorithm.top_entropy_quantile)
        paired = self._on_pairs(algorithm.algorithm_type)
        of_pairs = "seq-mean-token-mean" if paired else None  # for a user's loss too; ours have a natural aggregation
        mode = algorithm.loss_agg_mode or of_pairs or self.declared.aggregation
        # a constant, as the mode requires: the longest response would differ between batches
        normalizer = float(config.model.max_response_tokens) if mode == "seq-mean-token-sum-norm" else None
        self.aggregation = Aggregation(mode, normalizer, unit=2 if paired else 1,
                                       by_kind="is_expert" in needed_columns(self.policy_loss))

    def _on_pairs(self, algorithm_type: str) -> bool:
        """Whether rows come in pairs; for a user's loss this follows from its algorithm_type."""
        paired = algorithm_type in PAIR_TYPES
        if ":" not in self.name and (self.name in PAIR_TYPES) != paired:
            raise ConfigError(f"algorithm.policy_loss_fn={self.name} with algorithm.algorithm_type={algorithm_type}: "
                              f"{', '.join(PAIR_TYPES)} compare pairs of responses, which the types of the same names "
                              "read, and no other loss does. Choose both alike.")
        if ":" not in self.name and (self.name in SCORING) != (algorithm_type in SCORING):
            raise ConfigError(f"algorithm.policy_loss_fn={self.name} with algorithm.algorithm_type={algorithm_type}: "
                              f"{', '.join(SCORING)} takes scores of responses, and all others log-probs of tokens. "
                              "Choose both alike.")
        return paired

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns that rows must have; the rest comes from the model's forward. Where a batch has several steps
        (stages/learner/passes.py), prox_logprobs are those before the first one."""
        parts = [self.policy_loss, self.entropy_loss, self.kl.function]
        names = {name for part in parts for name in needed_columns(part)}
        if self.correction or self.rejection:
            names |= {self.corrected, "rollout_logprobs", *(("is_expert",) if self.mixes else ())}
        names |= {"estimated_kl"} if self.declared.estimates_kl else set()
        names |= {*self.choices, *(name for one in self.choices.values() for name in needed_columns(one))}
        names |= {"teacher_top_ids"} if "top_logprobs" in names else set()
        held = {"prox_logprobs"} & names if self.several else set()
        return tuple(sorted(names - {*OF_THE_FORWARD, "scores", "top_logprobs"} | held))

    def __call__(self, columns: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """columns: name -> [N], from rows and forward. Returns the loss [N] and statistics of [N]."""
        of_all = {"chosen": "chosen" in self.choices, "estimated_kl": self.declared.estimates_kl}
        given = {name: columns[name] for name, is_given in of_all.items() if is_given}
        loss, statistics = _call(partial(self.policy_loss, **given), columns)
        teaches = columns["teaches"] if "teaches" in self.choices else 1.0
        if self.correction:
            loss = loss * self._weights(columns)
        loss = loss * teaches
        if self.kl:
            kl = self._kl(columns)
            loss, statistics = loss + self.kl.kl_coef * kl, statistics | {"kl_loss": kl.detach()}
        if self.needs_entropy_gradient:
            loss = loss + _call(self.entropy_loss, columns) * teaches
        if self.rejection:
            out = rejected(columns[self.corrected], columns["rollout_logprobs"], columns["rows"], self.rejection)
            out = out & ~columns["is_expert"] if self.mixes else out
            loss, statistics = torch.where(out, 0.0, loss), statistics | {"rejected": out.to(loss.dtype)}
        return loss, statistics

    def choose(self, rows: list[Row], measured: list[np.ndarray]) -> None:
        """Sets the columns of `choices` in the rows of an optimizer step: which tokens teach, over all of them.

        measured: log-prob and entropy of each action token before the step, [n, 2] of each row. Demonstrations, which
        are not the policy's own, always teach.
        """
        own = [(row, values) for row, values in zip(rows, measured, strict=True) if not row.columns.get("is_expert")]
        both = torch.from_numpy(np.concatenate([values for _, values in own] or [np.zeros((0, 2), np.float32)]))
        counts = [len(values) for _, values in own]
        columns = {"logprobs": both[:, 0], "entropy": both[:, 1],
                   "rows": torch.repeat_interleave(torch.arange(len(own)), torch.tensor(counts, dtype=torch.int64))}
        for name, function in self.choices.items():
            more = {column: torch.from_numpy(np.concatenate([row.of_actions(column) for row, _ in own] or [[]]))
                    for column in needed_columns(function) if column not in columns}
            made = _call(function, columns | more).numpy().astype(np.float32)
            for row in rows:
                row.columns[name] = 1.0
            for (row, _), part in zip(own, np.split(made, np.cumsum(counts)[:-1]), strict=False):
                row.columns[name] = row.spread(part)

    def _weights(self, columns: dict[str, Tensor]) -> Tensor:
        """The correction, [N]; 1 on demonstrations, which no engine sampled."""
        weights, _ = importance_correction(
            columns[self.corrected], columns["rollout_logprobs"], columns["rows"], **self.correction)
        return torch.where(columns["is_expert"], 1.0, weights) if self.mixes else weights

    def mismatch(self, rows: list[Row], logprobs: list[np.ndarray]) -> Mismatch:
        """Mismatch between engine and trainer, bounded as in the correction even where none is applied.

        rows: rollouts; for stale ones it includes the policy's updates. logprobs: of the trainer, [N] for each row.
        """
        ours, engines = (torch.from_numpy(np.concatenate(parts))
                         for parts in (logprobs, [row.of_actions("rollout_logprobs") for row in rows]))
        row_of = torch.from_numpy(np.repeat(np.arange(len(rows)), [len(values) for values in logprobs]))
        weights, bounded = importance_correction(ours, engines, row_of, **self.correction or {"level": "token"})
        return mismatch(ours, engines, weights, **bounded)

    def _kl(self, columns: dict[str, Tensor]) -> Tensor:
        """[N]; 0 on demonstrations, whose states are not the policy's own."""
        estimator = self.kl.function
        if not self.aggregation.by_kind:
            return _call(estimator, columns)
        logprobs, is_expert = columns["logprobs"], columns["is_expert"]
        near = torch.where(is_expert, logprobs.detach(), columns["ref_logprobs"])  # so that no exponential overflows
        return torch.where(is_expert, torch.zeros_like(logprobs), _call(estimator, columns | {"ref_logprobs": near}))


def _choices(loss: Loss | type[Loss], quantile: float) -> dict[str, Callable[..., Tensor]]:
    """What selects tokens over the whole batch, by the column that it makes."""
    made: dict[str, Callable[..., Tensor]] = {"chosen": loss.choose} if loss.chooses_tokens else {}
    if quantile < 1:
        made["teaches"] = partial(of_high_entropy, quantile=quantile)
    return made


def correction_arguments(algorithm, config) -> dict | None:
    """Arguments of ouroboros.operators.correction.importance_correction; None where the loss takes no correction.

    Raises ConfigError for a level with a loss that already has a ratio to the rollout's log-probs, and for a mask
    without effect.
    """
    if algorithm.algorithm_type in GIVEN:
        return None
    loss, given = algorithm.policy_loss_fn, algorithm.rollout_correction
    required = needed_columns(chosen_loss(loss, algorithm.policy_loss_fn_args))
    if problems := ratio_problems(algorithm, required, several_steps(config.trainer)):
        raise ConfigError(" ".join(problems))
    spans = ratio_column(algorithm, required) == "rollout_logprobs"
    level = given.level or ("none" if spans or "logprobs" not in required else "token")
    return None if level == "none" else {"level": level, "mode": given.mode, "threshold": given.threshold}


def _entropy_loss(algorithm, demonstrated: bool) -> tuple[partial, bool]:
    """The entropy loss with its arguments, and whether its weight is nonzero."""
    name = "none" if demonstrated else algorithm.entropy_loss_fn
    function = chosen_estimate(ENTROPY_LOSSES, name, "algorithm.entropy_loss_fn")
    if not demonstrated:
        refuse_parameters(algorithm, "entropy_loss_fn")
    given = {} if demonstrated else algorithm.entropy_loss_fn_args
    bound = arguments("entropy_loss_fn", name, function, given, "algorithm.entropy_loss_fn_args")
    return partial(function, **bound), bool(bound.get("entropy_coef", ":" in name))


def refuse_parameters(algorithm, part: str) -> None:
    """Raises ConfigError for an unknown name, and where the user's function for `part` takes an unavailable column."""
    name = getattr(algorithm, part)
    function = chosen(TABLES[part], name, f"algorithm.{part}")
    if ":" in name and (problems := wrong_parameters(part, needed_columns(function), algorithm)):
        raise ConfigError(" ".join(problems))


def _call(function, columns: dict[str, Tensor]):
    return function(**{name: columns[name] for name in needed_columns(function)})
