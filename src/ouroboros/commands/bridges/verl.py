"""A launch script or configuration of veRL as a recipe.

Reads a shell script, dotted overrides, or YAML with veRL's nested keys; maps each key by tables/verl.yaml (of the SFT
trainers: verl_sft.yaml); lists the rest. Where keys depend on each other a rule returns facts, and the rows of its
section in verl_rows.yaml turn them into lines. Nothing is executed.
"""

import re
from typing import Any

from ouroboros.commands.bridges import arguments, verl_data, verl_objective, verl_rules
from ouroboros.commands.bridges.bash import read_script
from ouroboros.commands.bridges.source import Given, read_yaml
from ouroboros.commands.bridges.tables import keys, table
from ouroboros.commands.bridges.translation import SETTINGS, Entry, Translation
from ouroboros.commands.bridges.trinity_verl import refuse_others
from ouroboros.commands.bridges.verl_entry import SFT
from ouroboros.commands.bridges.verl_launch import OWN_CONFIGURATION, Launch, kind_of_keys, read_launch
from ouroboros.commands.bridges.verl_objective import Facts
from ouroboros.commands.bridges.verl_source import Verl
from ouroboros.pipeline.settings.guide import general
from ouroboros.pipeline.settings.key_tables import Renamed
from ouroboros.pipeline.store.yaml_values import scalar

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
        files = [one for one in settings if one.path[0] == "defaults" or one.key == "hydra.searchpath"]
        made.skipped += [(one.line, f"{one.key}={one.value}: names files of the configuration, which are not read; "
                                    "only what this file itself says is") for one in files]
        made.unread += [one.line for one in files if one.path == ("defaults",) and isinstance(one.value, list) and any(
            not OWN_CONFIGURATION.match(f"--config-name={name}") for name in one.value if name != "_self_")]
        given = {one.key: one for one in settings if one not in files}
        launch = Launch(kind_of_keys(list(given)), given=given)
    else:
        launch = read_launch(read_script(text, name), made)
    _resolve(launch)
    return launch, made


def translate(launch: Launch, made: Translation) -> Translation:
    """Fills in the recipe, and the result for each of its keys."""
    verl, is_sft = Verl(made, launch.given, launch.unknown, launch.entry), launch.kind == SFT
    facts = (OF_SFT if is_sft else OF_RL) | {"options": launch.options}
    for rule in SFT_RULES if is_sft else RULES:
        facts |= rule(verl, facts) or {}
        for row in table("verl_rows").get(rule.__name__, ()):
            _apply(verl, row, facts)
    name, sections = "verl_sft" if is_sft else "verl", ["defaults"]
    for key in [*launch.given, *launch.unknown]:
        if key not in verl.done:
            verl.by_itself(key, keys(name))
    if is_sft:
        is_older = verl.entry is None or verl.entry.name == "fsdp_sft_trainer"
        sections.append("defaults_of_fsdp_sft_trainer" if is_older else "defaults_of_sft_trainer")
    for key, value in (item for section in sections for item in table(name)[section].items()):  # where ours differ
        if not any(k in verl.values or k in verl.unknown for k in (key, *table(name)["instead"].get(key, ()))):
            verl.say(key, keys(name)[key].to, value, default=True)
    _decode_numbers(made)
    arguments.leave_out_unknown(made)
    arguments.leave_out_untrainable(made)
    made.keep_secrets_out()
    return made


def _apply(verl: Verl, row: dict[str, Any], facts: Facts) -> None:
    """Applies a row of verl_rows.yaml if its conditions hold; the table says what its fields are."""
    def text(name: str) -> str:
        return row.get(name, "").format(**facts)

    conditions = ((facts.get(fact), held) for fact, held in row.get("when", {}).items())
    if not all(found in (held if isinstance(held, list) else [held]) for found, held in conditions):
        return
    key, to, default = text("key"), row.get("to"), row.get("default")
    value = facts[row["fact"]] if "fact" in row else row["value"] if "value" in row else verl.value(key, default)
    if "note" in row or "ask" in row:
        (verl.made.note if "note" in row else verl.made.ask)(row.get("note") or row["ask"], **facts)
    elif not key and value is not None:
        verl.choose(to, value, text("comment"), of=tuple(row.get("of", ())))
    elif "why" in row and key not in verl.done:
        verl.leave(key, text("why"), idle=not row.get("lost"))
    elif "folded" in row:
        verl.fold(key, to)
    elif "values" in row:
        verl.by_itself(key, {key: Renamed(to, row["values"])})
    elif to and key:
        verl.say(key, to, value, text("more"), default=default is not None)


def _decode_numbers(made: Translation) -> None:
    """Marks numeric environment values to be parsed: as text they would be invalid."""
    for path, entry in list(made.entries.items()):
        item = SETTINGS.get(general(".".join(map(str, path))))
        is_text = item is None or re.search("str|Any|dict|list", str(item.annotation))
        if not is_text and isinstance(entry.value, str) and re.fullmatch(r"\$\{oc\.env:[\w,./-]+\}", entry.value):
            made.entries[path] = Entry(f"${{oc.decode:{entry.value}}}", entry.comment)


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


RULES = (verl_objective.distillation, verl_objective.algorithm, verl_objective.losses, verl_objective.sampling,
         verl_rules.batches, verl_objective.old_logprobs, verl_rules.nodes, verl_rules.gpus, verl_data.tasksets,
         verl_data.overlong, verl_rules.lengths, verl_objective.adapter, verl_rules.run, verl_data.task)
SFT_RULES = (verl_rules.started, verl_rules.nodes, verl_rules.ranks, verl_rules.demonstrations, verl_rules.sequence,
             verl_objective.adapter, verl_rules.run, verl_data.task)
OF_RL = {"is_rl": True, "gpus": 8, "project": "verl_examples", "keep": "trainer.max_actor_ckpt_to_keep",
         "model": verl_objective.POLICY}
OF_SFT = {"is_rl": False, "gpus": 1, "project": "gsm8k-sft", "keep": "trainer.max_ckpt_to_keep", "model": "model",
          "streams": False, "is_separate": False}
