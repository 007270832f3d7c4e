"""The terms of an algorithm's loss as settings name them, each with its arguments: KL, entropy, the correction."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from ouroboros.operators.arguments import arguments
from ouroboros.operators.choice import chosen, chosen_estimate, chosen_loss
from ouroboros.operators.entropy import ENTROPY_LOSSES
from ouroboros.operators.kl import KL_ESTIMATORS, adaptive_coefficient
from ouroboros.pipeline.settings.arguments.terms import Kl
from ouroboros.pipeline.settings.arguments.users import needed_columns
from ouroboros.pipeline.settings.columns import ratio_column, ratio_problems, wrong_parameters
from ouroboros.pipeline.settings.declared import TABLES
from ouroboros.pipeline.settings.trainer import several_steps
from ouroboros.pipeline.store.errors import ConfigError

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
        """part: kl_loss_fn or kl_penalty_fn. kl_coef: of a resumed stage, for a term that is adaptive.

        Raises ConfigError for unknown or contradictory settings.
        """
        refuse_parameters(algorithm, part)
        name = getattr(algorithm, part)
        bound = dict(Kl.bind(name, getattr(algorithm, f"{part}_args"), f"algorithm.{part}_args"))
        return cls(name, **bound | ({"kl_coef": kl_coef} if bound["adaptive"] and kl_coef is not None else {}))

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


def correction_arguments(config) -> dict | None:
    """Arguments of ouroboros.operators.correction.importance_correction; None where the loss takes no correction.

    config: the stage's settings. Raises ConfigError for a level with a loss that already has a ratio to the rollout's
    log-probs, and for a mask without effect.
    """
    algorithm = config.algorithm
    if not algorithm.on_rollouts:
        return None
    loss, given = algorithm.policy_loss_fn, algorithm.rollout_correction
    required = needed_columns(chosen_loss(loss, algorithm.policy_loss_fn_args))
    if problems := ratio_problems(algorithm, required, several_steps(config.trainer)):
        raise ConfigError(" ".join(problems))
    spans = ratio_column(algorithm, required) == "rollout_logprobs"
    level = given.level or ("none" if spans or "logprobs" not in required else "token")
    return None if level == "none" else {"level": level, "mode": given.mode, "threshold": given.threshold}


def entropy_loss(algorithm) -> tuple[partial, bool]:
    """The entropy loss with its arguments, and whether its weight is nonzero. algorithm: its section."""
    name, given = "none", {}
    if not algorithm.on_given_tokens:
        name, given = algorithm.entropy_loss_fn, algorithm.entropy_loss_fn_args
        refuse_parameters(algorithm, "entropy_loss_fn")
    function = chosen_estimate(ENTROPY_LOSSES, name, "algorithm.entropy_loss_fn")
    bound = arguments("entropy_loss_fn", name, function, given, "algorithm.entropy_loss_fn_args")
    return partial(function, **bound), bool(bound.get("entropy_coef", ":" in name))


def refuse_parameters(algorithm, part: str) -> None:
    """Raises ConfigError for an unknown name, and where the user's function for `part` takes an unavailable column."""
    name = getattr(algorithm, part)
    function = chosen(TABLES[part], name, f"algorithm.{part}")
    if ":" in name and (problems := wrong_parameters(part, needed_columns(function), algorithm)):
        raise ConfigError(" ".join(problems))


def call(function: Callable, columns: dict[str, Tensor]):
    """The result of a function for the columns that it takes, those of its parameters without a default."""
    return function(**{name: columns[name] for name in needed_columns(function)})
