"""Translates veRL's keys in a Trinity-RFT configuration, below trainer.trainer_config.

The original overwrites many of veRL's keys from its own sections; those have no effect here. The rest becomes our
setting, by the table of veRL's keys or, for keys that a veRL import reads with others, by tables/trinity.yaml.
"""

import re
from collections.abc import Callable
from pathlib import Path as File
from typing import Any

from ouroboros.commands.bridges.source import Given, read_yaml
from ouroboros.commands.bridges.tables import WITHOUT_EFFECT, find, keys, said, table
from ouroboros.commands.bridges.translation import Path, Translation, off
from ouroboros.commands.bridges.verl_entry import Refused
from ouroboros.commands.bridges.verl_source import ACTOR
from ouroboros.pipeline.settings.key_tables import Renamed
from ouroboros.pipeline.store.errors import ConfigError

ROOT = ("trainer", "trainer_config")
PREFIX = "trainer.trainer_config."
TRINITYS = ("buffer", "data_processor", "explorer", "mode", "model", "stages", "synchronizer")  # sections only it has
TRAINED = ("quantization",)  # of a task, the trainer's part: data, tools and rewards are in Trinity-RFT's own sections
Rename = Callable[[Translation, Given, Renamed, dict], None]


def translated(made: Translation, given: Given, inner: str, values: dict[Path, Any], rename: Rename) -> bool:
    """Handles a key of veRL; False if no table has it. inner: its name in veRL; rename: writes a key."""
    read, value = table("trinity"), given.value
    found = find(inner, keys("verl"))
    if inner in read["numbers"] and (value is None or (isinstance(value, (int, float)) and value <= 0)):
        made.idle.append((given, "disabled there too."))
    elif inner in read["numbers"]:
        rename(made, given, Renamed(read["numbers"][inner]), values)
    elif inner in read["by_hand"]:
        made.leave(given, f"write {read['by_hand'][inner]}.")
    elif inner in read["said_by"]:
        made.idle.append((given, f"{read['said_by'][inner]} sets it, there and here."))
    elif found and isinstance(found[1], Renamed):
        rename(made, given, found[1], values)
    elif found:  # it is disabled, or its effect is the default here
        is_reference = str(value).startswith("${") and str(value).endswith("}")
        is_off = off(values.get(tuple(str(value)[2:-1].split(".")), value) if is_reference else value, found[1].idle)
        said = [(*ROOT, *found[1].equals.split(".")), ("trainer", found[1].equals.rpartition(".")[2])] if (
            found[1].equals) else []
        is_idle = is_off or found[1].why in WITHOUT_EFFECT or value in [values[key] for key in said if key in values]
        if is_idle:
            made.idle.append((given, is_off + found[1].why))
        else:
            made.leave(given, found[1].why, found[1].loses if found[1].loses in TRAINED else "")
    return bool(found) or _is_read(inner)


def _is_read(inner: str) -> bool:
    """Returns whether a table of trinity.yaml has a key of veRL."""
    return any(inner in table("trinity")[name] for name in ("numbers", "by_hand", "said_by"))


def with_trainer_file(made: Translation, given: list[Given], place: File | None) -> list[Given]:
    """Adds the keys of the file trainer.trainer_config_path to a source's, below trainer.trainer_config.

    The path is searched for in the current directory, and in every directory above the source's file. place: of that.
    """
    found = []
    for one in given:
        if one.path[-2:] != ("trainer", "trainer_config_path") or not isinstance(one.value, str) or not one.value:
            found.append(one)
            continue
        roots = [File(), *(place.resolve().parents if place else ())]
        file = next((path for root in roots if (path := root / one.value).is_file()), None)
        if file is None:
            found.append(one)
            made.ask("no_trainer_file", path=one.value)
        else:
            made.idle.append((one, "its keys were read, each as one below trainer.trainer_config."))
            found += _of_file(made, file, one, given)
    return found


def _of_file(made: Translation, file: File, named: Given, given: list[Given]) -> list[Given]:
    """Returns a trainer file's keys, references resolved, with the line that names it. given: keys of the source.

    Up to 0.1 its use_kl_loss enabled the KL loss; it applies here if the source does not set that itself.
    """
    try:
        keys_of_file = {one.key: one for one in read_yaml(file.read_text(encoding="utf-8"), file.name)}
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is no text in UTF-8 ({error.reason} at byte {error.start}).") from error
    values = {key: one.value for key, one in keys_of_file.items()}
    values = {key: values.get(match[1], value) if (match := re.fullmatch(r"\$\{([\w.]+)\}", str(value))) else value
              for key, value in values.items()}
    made.note("trainer_file", file=file.name, line=named.line)
    stage = named.path[:-2]
    has_kl = any(one.path == (*stage, "algorithm", "kl_loss_fn") for one in given)
    switch, kind, coefficient = (f"{ACTOR}.{name}" for name in ("use_kl_loss", "kl_loss_type", "kl_loss_coef"))
    read = []
    if switch in values and not has_kl:
        name = str(values.pop(kind, "low_var_kl"))
        is_on, weight = bool(values.pop(switch)), values.pop(coefficient, None)
        made.note("kl_of_trainer_file", file=file.name)
        read.append(((*stage, "algorithm", "kl_loss_fn"), table("verl")["kl"].get(name, name) if is_on else "none"))
        if is_on and weight is not None:
            read.append(((*stage, "algorithm", "kl_loss_fn_args", "kl_coef"), weight))
    read += [((*stage, *ROOT, *keys_of_file[key].path), value) for key, value in values.items()]
    return [Given(path, value, named.line) for path, value in read if path not in {one.path for one in given}]


def is_misplaced(key: str) -> bool:
    """Returns whether a key that the guide does not have is one of veRL."""
    return key.startswith(("actor_rollout_ref.", "critic.")) or _is_read(key) or bool(find(key, keys("verl")))


def refuse_verls(given: list[Given], source: str) -> None:
    """Raises ConfigError for a configuration of veRL itself, or the part of one that trainer_config takes."""
    sections = {str(g.path[0]) for g in given}
    of_verl = sorted(sections & {"actor_rollout_ref", "critic"})
    if of_verl and not sections & set(TRINITYS) and "algorithm.algorithm_type" not in {g.key for g in given}:
        raise ConfigError(said("a_file_of_verl", source=source, sections=", ".join(of_verl)))


def refuse_others(given: list[Given], source: str) -> None:
    """Raises ConfigError for a configuration of Trinity-RFT or EasyR1 where one of veRL is expected."""
    sections = {str(g.path[0]) for g in given}
    if "worker" in sections and "actor_rollout_ref" not in sections:
        raise Refused(said("a_file_of_easyr1", source=source))
    of_trinity = sorted(sections & set(TRINITYS) - {"mode", "model"})
    if of_trinity and not sections & {"actor_rollout_ref", "data", "optim"}:
        raise ConfigError(said("a_file_of_trinity", source=source, sections=", ".join(of_trinity)))
