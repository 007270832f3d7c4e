"""A launch script or configuration of veRL as a recipe.

Reads a shell script, dotted overrides, or YAML with veRL's nested keys; maps each key by tables/verl.yaml (of the SFT
trainers: verl_sft.yaml) and what depends on several of them by the rules; lists the rest. Nothing is executed.
"""

import re
from typing import Any

from pipeline.bridges import arguments, verl_data, verl_objective, verl_rules, verl_sft
from pipeline.bridges.shell import read_script
from pipeline.bridges.source import Given, read_yaml
from pipeline.bridges.tables import keys
from pipeline.bridges.translation import Translation
from pipeline.bridges.trinity_verl import refuse_others
from pipeline.bridges.verl_entry import SFT
from pipeline.bridges.verl_launch import Launch, kind_of_keys, read_launch
from pipeline.bridges.verl_source import Verl
from pipeline.store.yaml_values import scalar

SCRIPT = re.compile(r"(^|[\s;&|])(python[\d.]*|torchrun|ray|srun|bash|set|export)\s|^\s*[+~]*\w+(\.\w+)+=",
                    re.MULTILINE)
REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\s*([A-Za-z_][\w.]*)\s*(?:,\s*([^{}]*))?\}")


def read(text: str, name: str) -> tuple[Launch, Translation]:
    """Returns what a source starts, with its keys' lines, and a translation with only the unread parts so far.

    Raises ConfigError when there is nothing of veRL in it, or a program that cannot be meant here.
    """
    made = Translation(name)
    is_script = name.endswith((".sh", ".bash", ".sbatch", ".slurm")) or SCRIPT.search(text)
    if name.endswith((".yaml", ".yml")) or not is_script:
        settings = read_yaml(text, name)
        refuse_others(settings, name)
        given = {g.key: g for g in settings if not _names_files(made, g)}
        launch = Launch(kind_of_keys(list(given)), given=given)
    else:
        launch = read_launch(read_script(text, name), made)
    _resolve(launch)
    return launch, made


def _names_files(made: Translation, given: Given) -> bool:
    """Returns whether a key selects further files, which are missing here: reported as `--config-name`."""
    names = given.path[0] == "defaults" or given.key == "hydra.searchpath"
    if names:
        made.skipped.append((given.line, f"{given.key}={given.value}: names files of veRL's configuration, which are "
                                         "not read; only what this file itself says is"))
    return names


def translate(launch: Launch, made: Translation) -> Translation:
    """Fills in the recipe, and the result for each of its keys."""
    verl, is_sft = Verl(made, launch.given, launch.unknown, launch.entry), launch.kind == SFT
    if is_sft:
        verl_sft.translate(verl, launch.options)
    else:
        for rule in RULES:
            rule(verl)
    for key in [*launch.given, *launch.unknown]:
        if key not in verl.done:
            verl.by_itself(key, keys("verl_sft" if is_sft else "verl"))
    if is_sft:
        verl_sft.defaults(verl)
    else:
        verl_rules.defaults(verl, "verl", "defaults")
    verl_rules.decode_numbers(made)
    arguments.leave_out_unknown(made)
    made.keep_secrets_out()
    return made


# ------------------------------------------------------------------------------------------------------- references


def _resolve(launch: Launch) -> None:
    """Resolves `${a.b}` from the source; unresolvable values are unknown."""
    values = {key: given.value for key, given in launch.given.items()}
    for key, one in list(launch.given.items()):
        value = one.value
        for _ in range(9):
            value, before = _each(_once, value, values), value
            if value == before:
                break
        texts = [part for part in (value if isinstance(value, list) else [value]) if isinstance(part, str)]
        if dangling := next(filter(None, map(REFERENCE.search, texts)), None):
            del launch.given[key]
            launch.unknown[key] = (one, f"a reference to {dangling[1]}, which is not given")
        else:  # veRL expands the ~ of a path itself
            value = _each(lambda text, _: re.sub(r"^~(?=/)", "${oc.env:HOME}", text), value, values)
            launch.given[key] = Given(one.path, value, one.line)


def _each(change: Any, value: Any, values: dict[str, Any]) -> Any:
    """Applies a change to a text, or to each text of a list."""
    if isinstance(value, list):
        return [_each(change, part, values) for part in value]
    return change(value, values) if isinstance(value, str) else value


def _once(text: str, values: dict[str, Any]) -> Any:
    if whole := REFERENCE.fullmatch(text):
        return values.get(whole[1], text if whole[2] is None else scalar(whole[2]))
    return REFERENCE.sub(lambda m: str(values.get(m[1], m[0])), text)


RULES = (verl_objective.algorithm, verl_objective.losses, verl_objective.sampling, verl_rules.batches,
         verl_objective.old_logprobs, verl_rules.gpus, verl_data.tasksets, verl_data.overlong, verl_rules.lengths,
         verl_objective.adapter, verl_rules.run)
