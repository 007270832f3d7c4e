"""Reasons why a value of a supported Trinity-RFT key cannot be used."""

import re
from typing import Any

from ouroboros.commands.bridges import tables
from ouroboros.commands.bridges.source import Given
from ouroboros.commands.bridges.tables import said
from ouroboros.commands.bridges.translation import SETTINGS, Path, places
from ouroboros.commands.bridges.trinity_whole import of_stage, stages_of
from ouroboros.pipeline.settings import guide
from ouroboros.pipeline.settings.algorithms import WITH_CRITIC, parts
from ouroboros.pipeline.settings.arguments.answers import REWARDS, WORKFLOWS
from ouroboros.pipeline.settings.arguments.base import types
from ouroboros.pipeline.settings.setting import about
from ouroboros.pipeline.settings.trainer import EXPLORER_DRIVEN, TRAINER_DRIVEN
from ouroboros.pipeline.store.yaml_values import scalar

DATABASE = re.compile(r"(sqlite|postgres(ql)?|mysql)(\+\w+)?:", re.I)
TRAINING_SET = re.compile(r"buffer\.explorer_input\.(taskset|tasksets\.\*)\.")
# those that ask no model, and our workflows
KNOWN_REWARDS = {*WORKFLOWS, *REWARDS, "math_reward", "math_boxed_reward", "math_dapo_reward"} - {
    "judge_reward", "reward_model"}
NAMED_BY_ROWS = ("workflow_key", "reward_fn_key")
OF_CRITIC = ("trainer.critic_warmup", "model.critic_model_path", "trainer.critic")
# training depends on these: an unknown name stays, so that the recipe does not compose until it is resolved
CHOSEN = re.compile(r"(algorithm_type|workflow_type|_fn|_fn_type)$")


def of_structure(given: Given) -> str | None:
    """Returns why a key is not a setting: a section that is not a mapping, stages that are not a list of mappings."""
    path, key, shown = given.path, guide.general(given.key), "null" if given.value is None else repr(given.value)
    if path[0] == "stages" and (len(path) < 3 or not isinstance(path[1], int)):
        return None if given.value == [] else said("no_stages", found=shown)
    if key in SETTINGS or key in guide.fates() or not any(k.startswith(f"{key}.") for k in (*SETTINGS, *guide.fates())):
        return None
    return "no settings there." if given.value in (None, {}) else f"needed a mapping of settings, found {shown}."


def of_value(general: str, given: Given, values: dict[Path, Any]) -> str | None:
    """Returns why a value of a supported key has no meaning here."""
    path = given.path
    if general.endswith(".path") and general.startswith("buffer.") and _is_database(path[:-1], values):
        return said("database")
    if without := _without_path(path, values):
        return without
    if TRAINING_SET.match(general) and general.endswith(".repeat_times"):
        return said("repeat_times_of_a_set")
    return without_critic(general, path, values)


def names_of_rewards(values: dict[Path, Any]) -> set[str]:
    """Returns the workflows and reward functions that a source names, and the columns whose rows name some."""
    return {str(value) for path, value in values.items() if value is not None and (
        str(path[-1]).endswith(("workflow_type", "reward_fn_type")) or path[-1] in NAMED_BY_ROWS)}


def _asks_nobody(name: str) -> bool:
    """Returns whether a workflow or reward function of the original is known, and asks no auxiliary model."""
    group = tables.workflows().get(name, {"loses": "" if name in KNOWN_REWARDS else "judge or teacher"})
    return group.get("loses") != "judge or teacher" and "judge" not in group


# sync_style -> the interval that counts with it, and the other side's
OF_SIDE = {TRAINER_DRIVEN: ("trainer_sync_interval", "explorer_sync_interval"),
           EXPLORER_DRIVEN: ("explorer_sync_interval", "trainer_sync_interval")}


def without_effect(general: str, value: Any, values: dict[Path, Any]) -> str | None:
    """Returns why a supported key has no effect in either system: its sets do not exist, or have one order."""
    if general.startswith("explorer.auxiliary_models.") and (
            named := sorted(names_of_rewards(values))) and all(map(_asks_nobody, named)):
        return f"loaded there, and asked by nobody: {', '.join(named)}."
    if general == "explorer.eval_interval" and not any("eval_tasksets" in path[:-1] for path in values):
        return "disabled there too: no set is given to evaluate on."
    warms_up = any("sft_warmup_dataset" in path for path in values)
    if general == "algorithm.sample_strategy" and value == "warmup" and not warms_up:
        return "without demonstrations to warm up on, there as here the default."
    if general.startswith("buffer.explorer_input.eval_tasksets.*.") and "_selector." in general:
        return "an evaluation answers every task of a set, so their order changes nothing."
    return _between_syncs(general, values)


def _between_syncs(general: str, values: dict[Path, Any]) -> str | None:
    """Returns why an interval or offset of weight syncs has no effect where one side drives them."""
    style = values.get(("synchronizer", "sync_style"))
    if str(style) not in OF_SIDE:
        return None
    own, other = OF_SIDE[style]
    if general == "synchronizer.sync_offset":
        return f"of sync_style=fixed; with {style} synchronizer.max_staleness is the bound."
    if general == f"synchronizer.{other}":
        return f"with {style} the interval of the other side counts."
    if general == "synchronizer.sync_interval" and ("synchronizer", own) in values:
        return f"with {style} {own} counts."
    return None


def without_critic(key: str, path: Path, values: dict[Path, Any]) -> str | None:
    """Returns why a critic's setting has no meaning: no algorithm, of any stage, has one. key: one of ours."""
    if not any(key == name or key.startswith(f"{name}.") for name in OF_CRITIC):
        return None
    kinds: dict[str | None, str] = {}
    for scope in [path[:2]] if path[0] == "stages" else stages_of(values) or [()]:
        kind, function = (of_stage(values, scope, "algorithm", name) for name in ("algorithm_type", "advantage_fn"))
        own = "" if kind is None else parts(str(kind)).get("advantage_fn")
        kinds[kind if kind is None else str(kind)] = own if kind is None or function is None else function
    if any(kind is None or "${" in f"{kind}{function}" or function in WITH_CRITIC for kind, function in kinds.items()):
        return None
    return f"disabled there too: {' and '.join(kinds)} has no critic."


def misfit(key: str, value: Any) -> str | None:
    """Returns why a value is not a choice of our setting `key`; None for any other setting."""
    item = SETTINGS.get(guide.general(key))
    choices = about(item).choices if item else ()
    if not choices or value is None or value in choices or "${" in str(value) or CHOSEN.search(key):
        return None
    return f"needed one of {', '.join(map(str, choices))}; our default applies."


def as_number(key: str, value: Any) -> Any:
    """Converts a text to the number or boolean that our setting `key` requires; leaves other values."""
    item = SETTINGS.get(guide.general(key))
    if item is None or not isinstance(value, str) or str in types(item.annotation):
        return value
    return scalar(value)


def _is_database(of_set: Path, values: dict[Path, Any]) -> bool:
    """Returns whether the data of a set (its path less the last key) are in a database or a queue."""
    return values.get((*of_set, "storage_type")) in ("queue", "sql") or bool(
        DATABASE.match(str(values.get((*of_set, "path")))))


def _without_path(path: Path, values: dict[Path, Any]) -> str | None:
    """Returns why settings for reading a set's file have no effect: the set has no file."""
    ends = [i for i, part in enumerate(path) if part in ("format", "subset_name")]
    if "buffer" not in path[:3] or not ends or any(str(part).endswith("_args") for part in path[:ends[0]]):
        return None
    of_set = path[:ends[0]]
    of_stages = (one[:-1] for one in values if (one[0], one[-1]) == ("stages", "path") and of_set in places(one[:-1]))
    own = [one for one in (*places(of_set), *of_stages) if values.get((*one, "path")) is not None]
    if own and not _is_database(own[0], values):
        return None
    return "read only with a path to files, and " + ("its path is left out." if own else "none is given.")
