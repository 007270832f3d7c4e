"""Warnings about what the functions that settings name do with the settings of a stage."""

from pipeline.check.named_functions import loss_columns
from pipeline.check.user_code import Functions
from pipeline.settings import arguments
from pipeline.settings.columns import ratio_column
from pipeline.settings.config import Config, users_code
from pipeline.store.errors import Problem


def notes(config: Config, functions: Functions) -> list[Problem | None]:
    """Returns the warnings about what the functions of a stage do with its settings."""
    return [loss_note(config, functions), clip_note(config, functions), estimate_note(config),
            *_tool_notes(config, functions)]


def _tool_notes(config: Config, functions: Functions) -> list[Problem]:
    """Returns warnings about tools of which the model is not told purpose or types."""
    lacking = {name: one.undescribed for name, one in functions.items() if one and one.undescribed}
    return [Problem(key, f"{', '.join(lacking[name][:4])}{', …' * (len(lacking[name]) > 4)}: the model is told nothing "
                    "of it.", "Write a docstring, and types such as `fruit: str`.", found=name)
            for key, name in (users_code(config) if lacking else ()) if name in lacking]


def loss_note(config: Config, functions: Functions) -> Problem | None:
    """Returns the warning about a loss without advantages in a stage whose settings compute them."""
    algorithm = config.algorithm
    name = algorithm.policy_loss_fn
    on_rollouts = config.kind.learns_from_rollouts
    if not (on_rollouts and name) or _chooses_rows(algorithm.advantage_fn, functions):
        return None
    taken = loss_columns(algorithm, functions)
    if taken is None or "advantages" in taken:
        return None
    return Problem("algorithm.policy_loss_fn", "takes no advantages: every response that advantage_fn="
                   f"{algorithm.advantage_fn} keeps has the same weight, whatever its reward.", "Choose another "
                   "loss if that is not meant.", found=name)


def _chooses_rows(advantage: str | None, functions: Functions) -> bool:
    ours, own = arguments.ADVANTAGES.get(advantage or ""), functions.get(advantage or "")
    return ours.chooses_rows if ours else bool(own and own.facts.get("chooses_rows"))


def estimate_note(config: Config) -> Problem | None:
    """Returns the warning about a KL loss with zero expected gradient, which does not constrain the policy."""
    algorithm = config.algorithm
    if algorithm.kl_loss_fn != "k1" or not config.kind.learns_from_rollouts:
        return None
    return Problem("algorithm.kl_loss_fn", "in the mean over tokens that the policy sampled its gradient is 0, so as a "
                   "loss it does not constrain the policy.", "Take k2 or k3, or use it as algorithm.kl_penalty_fn.",
                   found="k1")


def clip_note(config: Config, functions: Functions) -> Problem | None:
    """Returns the warning about a loss whose ratio is 1 at every update, so that clipping has no effect."""
    algorithm = config.algorithm
    name, given = algorithm.policy_loss_fn, algorithm.policy_loss_fn_args
    if not config.kind.learns_from_rollouts:
        return None
    taken = loss_columns(algorithm, functions)
    if taken is None:
        return None
    if ratio_column(algorithm, taken) == "old_logprobs":
        return Problem("algorithm.bypass_old_logprobs", f"a train batch is one update, so {name}'s ratio to the policy "
                       "just before it is 1, and clipping cannot act. rollout_correction bounds stale rows.",
                       found=False)
    clips = [key for key in given if key.startswith("clip_")]
    if "prox_logprobs" in taken and clips:
        return Problem(f"algorithm.policy_loss_fn_args.{clips[0]}", f"a train batch is one update, so {name}'s ratio "
                       "to the policy just before it is 1, and clipping cannot act. The importance weight bounds "
                       "stale rows.")
    return None
