"""Translates a Trinity-RFT configuration: every key by its entry in tables/trinity_guide.yaml, stages included."""

import re
from pathlib import Path as File
from typing import Any

from ouroboros.commands.bridges import (
    arguments,
    trinity_data,
    trinity_older,
    trinity_values,
    trinity_verl,
    trinity_whole,
)
from ouroboros.commands.bridges.source import Given
from ouroboros.commands.bridges.tables import keys, said
from ouroboros.commands.bridges.translation import SETTINGS, Entry, Path, Translation, directory_name, off
from ouroboros.pipeline.settings import guide
from ouroboros.pipeline.settings.arguments.addresses import NEEDED_VARIABLE, is_variable
from ouroboros.pipeline.settings.config import walk
from ouroboros.pipeline.settings.key_tables import Always, Fate, Refused, Renamed, Works
from ouroboros.pipeline.settings.kinds import MODES, ONLINE
from ouroboros.pipeline.settings.secrets import is_secret
from ouroboros.pipeline.store.errors import nearest
from ouroboros.pipeline.store.yaml_values import scalar

REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
TINKER, ADAPTER = ("model", "tinker"), ("model", "lora_configs", 0)
EXTERNAL, ENGINE = ("model", "external_model"), ("explorer", "rollout_model")
OF_SERVER = {"model_name": "model_name", "base_url_env": "base_url", "api_key_env": "api_key_env"}
RANK, ALPHA = 16, 32  # of Trinity-RFT's TinkerConfig, and of the service
LAYERS = {"train_mlp": ["gate_proj", "up_proj", "down_proj"], "train_attn": ["q_proj", "k_proj", "v_proj", "o_proj"]}


def translate(given: list[Given], source: str, place: File | None = None) -> Translation:
    """Returns the recipe of a configuration and the result for every key. Raises ConfigError for one of veRL.

    place: of the file; its trainer's file is searched for in that directory and above.
    """
    trinity_verl.refuse_verls(given, source)
    made = Translation(source)
    given = trinity_older.as_today(made, trinity_verl.with_trainer_file(made, given, place))
    given = trinity_older.warmed_up(made, given)
    nothing = [g for g in given if g.value == "None" or (g.value == "" and guide.general(g.key) in SETTINGS)]
    values = {g.path: None if g in nothing else g.value for g in given}
    made.idle += [(g, "nothing is set there either.") for g in nothing if not g.value]
    given = [Given(g.path, trinity_values.as_number(g.key, values[g.path]), g.line) for g in given
             if g not in nothing or g.value]
    given = [g for g in given if not _shapeless(made, g)]
    given = trinity_data.read_by_a_set(made, given, values)
    given = [g for g in given if not _accounted(made, g, values)]
    fates = [(g, _fate(g.key)) for g in given]
    for key, fate in fates:
        if isinstance(fate, Works):
            _works(made, key, values)
    for key, fate in fates:
        if isinstance(fate, Renamed):
            _renamed(made, key, fate, values)
        elif isinstance(fate, Always | Refused):
            _refused(made, key, fate, values)
        elif fate is None:
            _unknown(made, key, values)
    _mend_references(made, values)
    trinity_data.say_defaults(made)
    trinity_whole.say_defaults(made, values, {guide.general(".".join(map(str, path))) for path in values})
    trinity_whole.lengths(made)
    trinity_whole.train_batch(made)
    trinity_whole.gpus(made)
    trinity_data.say_rewards(made, values)
    trinity_whole.budget(made)
    trinity_whole.complete_stages(made, values)
    arguments.leave_out_unknown(made)
    arguments.leave_out_untrainable(made)
    made.keep_secrets_out()
    return made


def _shapeless(made: Translation, given: Given) -> bool:
    """Returns whether a key is where no setting can be, and is left out."""
    if reason := trinity_values.of_structure(given):
        (made.idle if given.value in (None, {}) else made.left_out).append((given, reason))
    return bool(reason)


def _fate(key: str) -> Fate | None:
    general, unlisted = guide.general(key), keys("trinity")
    if general in unlisted:  # among free arguments; the guide says more on these
        return unlisted[general]
    if found := guide.find(key):
        return found[1]
    if re.fullmatch(r"stages\.\d+\.(stage_name|after)", key):
        return Works()
    while general and general not in SETTINGS and general not in unlisted:
        general = general.rpartition(".")[0]
    return unlisted.get(general)


def _accounted(made: Translation, given: Given, values: dict[Path, Any]) -> bool:
    """Handles keys of a teacher, a judge or a reward of the original, and idle ones; returns whether it was one.

    The general entry of a key does not apply to these.
    """
    general = guide.general(given.key)
    stage = _stage(given.path)[0]
    if (trinity_data.teacher(made, given, stage, values) or trinity_data.replay(made, given, values)
            or tinker(made, given, stage, values)
            or external(made, given, values) or copies(made, given, values)
            or trinity_data.unfit_operator(made, given, stage, values)
            or trinity_data.dapo_reward(made, given, values) or trinity_data.columns(made, given, values)):
        return True
    if reason := trinity_values.without_effect(general, given.value, values):
        made.idle.append((given, reason))
    return bool(reason)


def _stage(path: Path) -> tuple[Path, Path]:
    """Splits a path into `stages, i` (or nothing) and the setting."""
    return (path[:2], path[2:]) if path[0] == "stages" and len(path) > 2 else ((), path)


# ------------------------------------------------------------------------------------------------------------ one key


def _works(made: Translation, given: Given, values: dict[Path, Any]) -> None:
    (stage, path), general, value = _stage(given.path), guide.general(given.key), given.value
    algorithm = trinity_whole.of_stage(values, stage, *trinity_whole.KIND)
    if general == "buffer.train_batch_size" and algorithm in ("sft", "dpo", "cpt"):
        made.entries.pop((*stage, "buffer", "batch_size"), None)
        made.rename(given, (*stage, "buffer", "batch_size"), value, f"{general}: rows of an optimizer step")
        return
    reason = guide.explain_value(given.key, value) or trinity_values.of_value(general, given, values)
    meant = {} if isinstance(value, (list, dict)) else guide.meanings(given.key) or trinity_data.workflows_of(general)
    if reason:
        made.leave(given, reason, "mode" if general == "mode" else "")
    elif meant and value in meant:
        made.rename(given, given.path, meant[value], f"{value} there")
    elif misfit := trinity_values.misfit(given.key, value):
        made.leave(given, misfit)
    elif path == ("stage_name",) and (name := trinity_whole.names_of(values)[stage[1]]) != value:
        made.rename(given, given.path, name, f"{value} there: it names a rule")
    elif given.key in ("project", "name") and directory_name(value) != value:
        made.rename(given, given.path, directory_name(value), f"{value} there: it becomes a directory")
    else:
        made.keep(given)


def _renamed(made: Translation, given: Given, fate: Renamed, values: dict[Path, Any]) -> None:
    stage, path = _stage(given.path)
    stars = iter([part for part in path if isinstance(part, int)])
    target = (*stage, *(next(stars, 0) if part == "*" else part for part in fate.to.split(".")))
    if fate.values and (isinstance(given.value, (list, dict)) or given.value not in fate.values):
        known = ", ".join(map(str, fate.values))
        made.leave(given, guide.explain_value(given.key, given.value)
                   or f"needed {known}; {fate.to} was left at its default.")
        return
    value = fate.values[given.value] if fate.values else trinity_values.as_number(fate.to, given.value)
    reason = trinity_values.without_critic(fate.to, given.path, values) or trinity_values.misfit(fate.to, value)
    if reason:
        made.leave(given, reason)
        return
    there = f" = {given.value}" if value != given.value else ""
    made.rename(given, target, value, given.key.removeprefix(".".join(map(str, stage)) + ".") + there)


def _refused(made: Translation, given: Given, fate: Always | Refused, values: dict[Path, Any]) -> None:
    key = guide.general(given.key)
    inner = key.removeprefix(trinity_verl.PREFIX)
    if inner == key or not trinity_verl.translated(made, given, inner, values, _renamed):
        if isinstance(fate, Always) and fate.holds(given.key, given.value):
            made.idle.append((given, f"always so: {fate.why}"))
        elif is_off := off(given.value, _idle(fate, given, values)):
            made.idle.append((given, is_off + fate.why))
        else:
            made.leave(given, fate.why, getattr(fate, "loses", ""))


def _idle(fate: Always | Refused, given: Given, values: dict[Path, Any]) -> tuple:
    """Returns the values that disable a key: its own; any value when its family is disabled."""
    parts = guide.general(given.key).split(".")
    stage = len(given.path) - len(parts)
    for size in range(1, len(parts)):
        family = guide.fates().get(".".join(parts[:size]))
        switches = [item for item in family.idle if isinstance(item, tuple)] if isinstance(family, Refused) else []
        if any(values.get((*given.path[:stage + size], name), values) == value for name, value in switches):
            return (given.value,)
    return tuple(item for item in getattr(fate, "idle", ()) if not isinstance(item, tuple))


def _unknown(made: Translation, given: Given, values: dict[Path, Any]) -> None:
    general = guide.general(given.key)
    if reason := trinity_values.of_value(general, given, values):
        made.leave(given, reason)
    elif general in SETTINGS or general.startswith(FREE):
        made.keep(given)
    elif trinity_verl.is_misplaced(given.key):
        made.leave(given, said("misplaced"))
    else:
        known = [*SETTINGS, *(key for key, fate in guide.fates().items() if not isinstance(fate, Refused))]
        loses = "quantization" if given.path[-1] in QUANTIZED and given.value not in (None, False, "auto") else ""
        made.leave(given, f"no key of the guide, and none here.{nearest(general, known)}", loses)


def _mend_references(made: Translation, values: dict[Path, Any]) -> None:
    """Resolves `${a.b}` to its value where the key has another name here, or is left out."""
    written = {".".join(map(str, path)) for path in made.entries}
    names = {given.key: target for given, target in made.renamed}
    source = {".".join(map(str, path)): value for path, value in values.items()}

    def stands_for(match: re.Match) -> str:
        key = match[1]
        if key in written or any(w.startswith(key + ".") for w in written) or key not in source or is_secret(key):
            return match[0]
        return f"${{{names[key]}}}" if names.get(key) in written else str(source[key])

    for path, entry in made.entries.items():
        value = entry.value
        for _ in range(9):  # references may be nested
            value = REFERENCE.sub(stands_for, value) if isinstance(value, str) else value
        if isinstance(value, str) and value != entry.value:
            meant = value if "${" in value else scalar(value)
            made.entries[path] = Entry(meant, entry.comment or f"{entry.value} there")


QUANTIZED = ("quantization", "kv_cache_dtype", "load_in_4bit", "load_in_8bit", "quantization_config")  # of vLLM's keys
FREE = tuple(f"{key}." for key, item in walk()  # mappings with arbitrary keys
             if str(item.annotation).startswith(("dict", "list[dict")) and "Any" in str(item.annotation))


# ---------------------------------------------------------------- services: `model.tinker` and `model.external_model`
#
# The service of the first trains a LoRA adapter, here the trainer does. The learning rate is an adapter's, so without
# the adapter the recipe would train all weights far too fast. The second is a server whose model is evaluated.


def tinker(made: Translation, given: Given, stage: Path, values: dict[Path, Any]) -> bool:
    """Writes a key of an enabled `model.tinker` as one of the adapter; False for any other key."""
    section, name = (*stage, *TINKER), given.path[-1]
    if given.path[:-1] != section or values.get((*section, "enable")) is not True:
        return False
    adapter = (*stage, *ADAPTER)
    if name == "enable":
        rank = values.get((*section, "rank"))
        made.rename(given, (*adapter, "lora_rank"), RANK if rank is None else rank, "model.tinker.rank")
        made.choose((*adapter, "lora_alpha"), ALPHA, "the service's own")
        left_out = [layer for switch, layers in LAYERS.items() if values.get((*section, switch)) is False
                    for layer in layers]
        if left_out:
            made.choose((*adapter, "exclude_modules"), left_out, "train_mlp and train_attn of model.tinker")
        made.note("tinker", rank=made.value(*adapter, "lora_rank"), alpha=ALPHA)
    elif name in ("rank", *LAYERS):
        made.renamed.append((given, "model.lora_configs"))
    else:
        made.idle.append((given, said("tinkers_own")))
    return True


def copies(made: Translation, given: Given, values: dict[Path, Any]) -> bool:
    """Writes engine_num and data_parallel_size as the number of engines; False for any other key, and without a number.

    A copy of the model within an engine of the original is a separate engine here.
    """
    name, section = given.path[-1], given.path[:-1]
    if section[-2:] != ENGINE or name not in ("engine_num", "data_parallel_size"):
        return False
    split = values.get((*section, "data_parallel_size"))
    engines = values.get((*section, "engine_num"), 1)
    if not all(type(number) is int and number > 0 for number in (split, engines)):
        return False
    made.rename(given, (*section, "engine_num"), engines * split, f"{engines} times data_parallel_size={split}")
    return True


def external(made: Translation, given: Given, values: dict[Path, Any]) -> bool:
    """Writes a key of an enabled `model.external_model` as one of the server that answers; False for any other key.

    Only a stage that does not train can have one.
    """
    kind = MODES.get(str(values.get(("mode",))), ONLINE)
    is_on = values.get((*EXTERNAL, "enable")) is True and (kind.evaluates or (kind.explores and not kind.trains))
    if is_on and given.path == (*ENGINE, "engine_type"):
        made.rename(given, given.path, "openai", f"{given.value} there")
        return True
    if is_on and given.path == ("model", "model_path"):
        made.idle.append((given, "only names the server's model there, as external_model.model_name does."))
        return True
    if not is_on or given.path[:-1] != EXTERNAL:
        return False
    name = given.path[-1]
    if name == "enable" and (*ENGINE, "engine_type") in values:
        made.renamed.append((given, "explorer.rollout_model.engine_type"))
    elif name == "enable":
        made.rename(given, (*ENGINE, "engine_type"), "openai", given.key)
    elif name not in OF_SERVER:
        made.leave(given, "no key of the guide.")
    elif given.value in (None, ""):
        made.leave(given, said("of_server_empty", key=".".join((*ENGINE, "external", OF_SERVER[name]))))
    elif name.endswith("_env") and not is_variable(str(given.value)):
        made.leave(given, f"{NEEDED_VARIABLE}.")
    else:
        value = f"${{oc.env:{given.value}}}" if name == "base_url_env" else given.value
        made.rename(given, (*ENGINE, "external", OF_SERVER[name]), value, given.key)
    return True
