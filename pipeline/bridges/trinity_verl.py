"""veRL's keys in a Trinity-RFT configuration, below trainer.trainer_config: what each says there.

The original sets many of veRL's keys from its own sections; those say nothing here. The rest becomes our setting, by
the table of veRL's keys and, of keys that an import of veRL reads together with others, by the tables here.
"""

from collections.abc import Callable
from typing import Any

from pipeline.bridges import verl_keys
from pipeline.bridges.source import Given
from pipeline.bridges.translation import Path, Translation, off
from pipeline.bridges.verl_source import ACTOR
from pipeline.settings.algorithms import filled
from pipeline.settings.guide_keys import Refused, Renamed
from pipeline.store.errors import ConfigError

ROOT = ("trainer", "trainer_config")
PREFIX = "trainer.trainer_config."
CLIP, CLIP_RANGE = f"{ACTOR}.clip_ratio", "algorithm.policy_loss_fn_args.clip_range"
MISPLACED = ("a key of veRL: it belongs below trainer.trainer_config, or the file is one for `ouro import verl`.")
TRINITYS = ("buffer", "data_processor", "explorer", "mode", "model", "stages", "synchronizer")  # sections it alone has

# one number of veRL, by itself one of ours; a step of the trainer is an optimizer step there as here
ALONE = {
    f"{ACTOR}.ppo_max_token_len_per_gpu": "trainer.max_token_len_per_gpu",
    f"{ACTOR}.optim.lr_warmup_steps": "algorithm.optimizer.lr_warmup_steps",
    "trainer.max_actor_ckpt_to_keep": "trainer.max_checkpoints_to_keep",
}
# arguments of a function that must be on: key of veRL -> the function's key, the argument
ARGUMENTS = {
    "algorithm.gamma": ("advantage_fn", "gamma"),
    "algorithm.lam": ("advantage_fn", "lam"),
    "algorithm.kl_ctrl.kl_coef": ("kl_penalty_fn", "kl_coef"),
    f"{ACTOR}.kl_loss_coef": ("kl_loss_fn", "kl_coef"),
}
TAKES = {"gamma": ("ppo", "reinforceplusplus"), "lam": ("ppo",)}
# what the original sets itself, from the key of its own that says it
SAID_BY = {
    "algorithm.adv_estimator": "algorithm.advantage_fn",
    "algorithm.norm_adv_by_std_in_grpo": "algorithm.advantage_fn",
    "algorithm.use_kl_in_reward": "algorithm.kl_penalty_fn",
    "algorithm.kl_penalty": "algorithm.kl_penalty_fn",
    f"{ACTOR}.use_kl_loss": "algorithm.kl_loss_fn",
    f"{ACTOR}.kl_loss_type": "algorithm.kl_loss_fn",
    f"{ACTOR}.policy_loss.loss_mode": "algorithm.policy_loss_fn",
    f"{ACTOR}.ppo_mini_batch_size": "buffer.batch_size",
    "data.train_batch_size": "buffer.batch_size",
    "data.train_files": "buffer.explorer_input",
    "data.val_files": "buffer.explorer_input",
    "trainer.project_name": "project",
    "trainer.experiment_name": "name",
    "trainer.default_local_dir": "checkpoint_root_dir",
    "trainer.logger": "monitor.monitor_type",
    "trainer.save_freq": "trainer.save_interval",
    "trainer.test_freq": "explorer.eval_interval",
    "trainer.total_training_steps": "trainer.total_steps",
}
Rename = Callable[[Translation, Given, Renamed, dict], None]


def translated(made: Translation, given: Given, inner: str, values: dict[Path, Any], rename: Rename) -> bool:
    """Accounts for a key of veRL; False for one that no table has. inner: its name in veRL; rename: writes one."""
    stage = given.path[:2] if given.path[0] == "stages" else ()
    found = verl_keys.find(inner)
    if inner in ALONE:
        _number(made, given, inner, values, rename)
    elif inner in ARGUMENTS:
        _argument(made, given, inner, (stage, values), rename)
    elif inner in SAID_BY:
        made.idle.append((given, f"{SAID_BY[inner]} says it, there as here."))
    elif inner == CLIP:
        _clip_range(made, given, stage, values)
    elif found and isinstance(found[1], Renamed):
        rename(made, given, found[1], values)
    elif found:
        _none(made, given, found[1], values)
    return bool(found) or inner in (*ALONE, *ARGUMENTS, *SAID_BY, CLIP)


def _none(made: Translation, given: Given, fate: Refused, values: dict[Path, Any]) -> None:
    """A key without a counterpart: nothing is missing where it is off, or does nothing that is not done here anyway."""
    said = off(_meant(given.value, values), fate.idle)
    (made.idle if said or fate.why in verl_keys.WITHOUT_EFFECT else made.left_out).append((given, said + fate.why))


def _meant(value: Any, values: dict[Path, Any]) -> Any:
    """What a value that is a reference to another key stands for."""
    named = str(value)[2:-1] if str(value).startswith("${") and str(value).endswith("}") else ""
    return values.get(tuple(named.split(".")), value)


def _number(made: Translation, given: Given, inner: str, values: dict[Path, Any], rename: Rename) -> None:
    if given.value is None or (isinstance(given.value, (int, float)) and given.value <= 0):
        made.idle.append((given, "off there too."))
    else:
        rename(made, given, Renamed(ALONE[inner]), values)


def _argument(made: Translation, given: Given, inner: str, scope: tuple[Path, dict], rename: Rename) -> None:
    kind, argument = ARGUMENTS[inner]
    function = _function(kind, *scope)
    if function is not None and (function == "none" or function not in TAKES.get(argument, (function,))):
        made.leave(given, f"means nothing with algorithm.{kind}={function}.")
    else:
        rename(made, given, Renamed(f"algorithm.{kind}_args.{argument}"), scope[1])


def _function(kind: str, stage: Path, values: dict[Path, Any]) -> str | None:
    """The function of a kind that a stage has: given, or the algorithm's own; None where that is not known."""
    def given(name: str) -> Any:
        return values.get((*stage, "algorithm", name), values.get(("algorithm", name)))

    if given(kind) is not None:
        return str(given(kind))
    try:
        return filled({"algorithm_type": str(given("algorithm_type")), kind: None, f"{kind}_args": {}})[kind]
    except ConfigError:
        return None


def _clip_range(made: Translation, given: Given, stage: Path, values: dict[Path, Any]) -> None:
    """clip_ratio says the bounds that clip_ratio_low and clip_ratio_high do not."""
    bounds = [bound for bound in ("low", "high")
              if values.get((*stage, *ROOT, *CLIP.split(".")[:-1], f"clip_ratio_{bound}")) is None]
    if not bounds:
        made.leave(given, "clip_ratio_low and clip_ratio_high say it.")
        return
    targets = [(*stage, *f"{CLIP_RANGE}_{bound}".split(".")) for bound in bounds]
    made.rename(given, targets[0], given.value, f"{PREFIX}{CLIP}")
    if targets[0] in made.entries:
        for target in targets[1:]:
            made.choose(target, given.value, f"{PREFIX}{CLIP}")


def is_misplaced(key: str) -> bool:
    """Whether a key that the guide does not have is one of veRL."""
    return key.startswith(("actor_rollout_ref.", "critic.")) or key in (*ALONE, *ARGUMENTS, *SAID_BY) or bool(
        verl_keys.find(key))


def refuse_verls(given: list[Given], source: str) -> None:
    """Raises ConfigError for a configuration that is veRL's own, or the part of one that trainer_config takes."""
    sections = {str(g.path[0]) for g in given}
    of_verl = sorted(sections & {"actor_rollout_ref", "critic"})
    if of_verl and not sections & set(TRINITYS) and "algorithm.algorithm_type" not in {g.key for g in given}:
        raise ConfigError(f"{source} has the sections of veRL at its root ({', '.join(of_verl)}) and none that Trinity-"
                          "RFT alone has. Import a configuration of veRL by `ouro import verl`; as a part of one of "
                          "Trinity-RFT it belongs below trainer.trainer_config.")


def refuse_trinitys(given: list[Given], source: str) -> None:
    """Raises ConfigError for a configuration of Trinity-RFT where one of veRL is to be read."""
    sections = {str(g.path[0]) for g in given}
    of_trinity = sorted(sections & set(TRINITYS) - {"mode", "model"})
    if of_trinity and not sections & {"actor_rollout_ref", "data", "optim"}:
        raise ConfigError(f"{source} has sections that Trinity-RFT alone has ({', '.join(of_trinity)}) and none of "
                          "veRL. Import a configuration of Trinity-RFT by `ouro import trinity`.")
