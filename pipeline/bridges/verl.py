"""A launch script or configuration of veRL as a recipe.

Reads a shell script, dotted overrides, or YAML with veRL's nested keys; maps each key by pipeline/bridges/verl_keys.py
and what depends on several of them by the rules; lists the rest. Nothing is executed.
"""

import re
from typing import Any

from pipeline.bridges import verl_adapter, verl_data, verl_keys, verl_objective, verl_rules
from pipeline.bridges.shell import Command, Script, read_script
from pipeline.bridges.source import Given, read_yaml, scalar
from pipeline.bridges.translation import Translation, off
from pipeline.bridges.verl_source import Verl
from pipeline.errors import ConfigError
from pipeline.guide_keys import Renamed

OVERRIDE = re.compile(r"(?P<sign>\+{0,2}|~)(?P<key>[A-Za-z_][\w/-]*(?:\.[\w*-]+)*)(?:@[\w.]+)?=(?P<value>.*)",
                      re.DOTALL)
DELETION = re.compile(r"~[\w./@-]+")
SECTIONS = ("actor_rollout_ref", "algorithm", "critic", "custom_reward_function", "data", "global_profiler", "ray_init",
            "ray_kwargs", "reward_model", "trainer", "transfer_queue")
ENTRY = re.compile(r"(^|[./])main_\w+(\.py)?$|^(verl|recipe)\.[\w.]+$")
HARMLESS = ("set", "wait", "echo", "printf", "cd", "mkdir", "ulimit", "sleep", ":", "tee", "unset", "[", "test")
HYDRA = re.compile(r"--?(config-name|config-path|config-dir|cn|cp|cd)(=(?P<value>.*))?")
SCRIPT = re.compile(r"(^|[\s;&|])(python[\d.]*|torchrun|ray|srun|bash|set|export)\s|^\s*[+~]*\w+(\.\w+)+=",
                    re.MULTILINE)
REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\s*([A-Za-z_][\w.]*)\s*(?:,\s*([^{}]*))?\}")


def read(text: str, name: str) -> tuple[list[Given], Translation]:
    """The keys of a source with their lines, and a translation that so far holds what was passed over.

    Raises ConfigError when there is nothing of veRL in it.
    """
    made = Translation(name)
    is_script = name.endswith((".sh", ".bash", ".sbatch", ".slurm")) or SCRIPT.search(text)
    if name.endswith((".yaml", ".yml")) or not is_script:
        given = read_yaml(text, name)
    else:
        script = read_script(text)
        made.skipped = script.skipped
        given = _overrides(script, made, name)
    return _resolved(given, made), made


def translate(given: list[Given], made: Translation) -> Translation:
    """Fills in the recipe of what was read, and the account of each of its keys."""
    verl = Verl(made, {g.key: g for g in given})
    for rule in (verl_objective.algorithm, verl_objective.losses, verl_objective.correction, verl_rules.batches,
                 verl_rules.gpus, verl_data.tasksets, verl_rules.lengths, verl_adapter.adapter, verl_rules.run):
        rule(verl)
    for one in given:
        if one.key not in verl.done:
            _by_itself(verl, one)
    verl_rules.defaults(verl)
    verl_rules.decode_numbers(made)
    return made


def _by_itself(verl: Verl, given: Given) -> None:
    """A key that has a counterpart by itself, or none."""
    found = verl_keys.find(given.key)
    if given.key.startswith("critic.") and verl.algorithm_type != "ppo":
        verl.leave(given.key, f"there is no critic in {verl.algorithm_type}.")
    elif found is None:
        verl.leave(given.key, "no counterpart known.")
    elif isinstance(found[1], Renamed):
        fate = found[1]
        if fate.values and (isinstance(given.value, (list, dict)) or given.value not in fate.values):
            verl.leave(given.key, f"needed {', '.join(map(str, fate.values))}; {fate.to} was left at its default.")
        else:
            verl.say(given.key, fate.to, fate.values.get(given.value) if fate.values else given.value)
    else:
        verl.leave(given.key, off(given.value) + found[1].why)


# ---------------------------------------------------------------------------------------------------------- scripts


def _overrides(script: Script, made: Translation, name: str) -> list[Given]:
    """The overrides of the command that starts veRL; without one, every override in the script."""
    chosen = _launch(script, made)
    commands = [chosen] if chosen else script.commands
    found: dict[str, Given] = {}
    for command in commands:
        started = 0
        for position, argument in enumerate(command.arguments):
            match = OVERRIDE.fullmatch(argument.text)
            if match and (chosen or match["key"].partition(".")[0] in SECTIONS):
                _take(found, made, match, argument)
            elif chosen:
                _note(made, argument, command.arguments[position - 1].text if started else None)
            started = started or ENTRY.search(argument.text)
    if chosen:
        _note_stray(script, chosen, made)
    if not found:
        raise ConfigError(f"{name}: found no command that starts veRL, and no override such as "
                          "data.train_batch_size=1024. Needed a launch script (python3 -m verl.trainer.main_ppo ...), "
                          "overrides, or YAML with veRL's keys.")
    return list(found.values())


def _launch(script: Script, made: Translation) -> Command | None:
    """The command that starts veRL: the one with main_ppo, or another entry of veRL's, or with many overrides."""
    def rank(command: Command) -> int:
        words = [a.text for a in command.arguments]
        overrides = sum(bool(OVERRIDE.fullmatch(w)) and w.lstrip("+~").partition(".")[0] in SECTIONS for w in words)
        entry = any("main_ppo" in w for w in words) * 2 + any(ENTRY.search(w) for w in words)
        return (entry * 2 + (command.inside is None)) * (overrides > 0 or "main_ppo" in " ".join(words))

    ranked = sorted((c for c in script.commands if rank(c) > 1), key=rank, reverse=True)
    if not ranked:
        return None
    best = ranked[0]
    if best.inside:
        made.skipped.append((best.line, f"the command that starts veRL stands inside the {best.inside}; read once"))
    for other in ranked[1:]:
        made.skipped.append((other.line, f"another command that starts veRL; that of line {best.line} was read"))
    return best


def _take(found: dict[str, Given], made: Translation, match: re.Match, argument) -> None:
    key = match["key"]
    given = Given(tuple(key.split(".")), _value(match["value"]), argument.line)
    if argument.problem:
        made.leave(Given(given.path, match["value"], argument.line), f"its value holds {argument.problem}.")
    elif match["sign"] == "~":
        made.leave(given, "deletes a key of veRL's own configuration, which is not read.")
    else:
        found[key] = given  # the last one counts, as in Hydra


def _note(made: Translation, argument, before: str | None) -> None:
    """What stands in the launch command and is no override. before: the word before it, behind veRL's entry."""
    if option := HYDRA.fullmatch(argument.text):
        made.skipped.append((argument.line, f"{option[0]}: names a file of veRL's configuration, which is not read; "
                                            "only what the command itself says is"))
    elif DELETION.fullmatch(argument.text):
        made.skipped.append((argument.line, f"{argument.text}: deletes a key of veRL's own configuration"))
    elif argument.problem:
        made.skipped.append((argument.line, f"{argument.text}: holds {argument.problem}"))
    elif before is not None and not before.startswith("-") and not argument.text.startswith("-"):
        made.skipped.append((argument.line, f"{argument.text}: is no override"))


def _note_stray(script: Script, chosen: Command, made: Translation) -> None:
    """Overrides that stand outside the command, as when a backslash was forgotten; and the other commands."""
    others: dict[str, int] = {}
    for command in script.commands:
        first = command.arguments[0].text
        match = OVERRIDE.fullmatch(first)
        if command is not chosen and match and match["key"].partition(".")[0] in SECTIONS:
            made.skipped.append((command.line, f"{first}: stands outside the command that starts veRL (a backslash "
                                               "missing at the end of the line above?)"))
        elif command is not chosen and first not in HARMLESS:
            others.setdefault(first, command.line)
    if others:
        words = ", ".join(f"{word} (line {line})" for word, line in list(others.items())[:8])
        made.skipped.append((min(others.values()), f"not run: {words}"))


def _value(text: str) -> Any:
    """The value of an override, as Hydra reads it; the text itself where Hydra would not."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(f"k={text}")
        value = text if parsed.is_sweep_override() else parsed.value()
    except (HydraException, ValueError, RecursionError):
        return scalar(text) if not text.lstrip().startswith(("[", "{", "&", "*", "!")) else text
    return None if value == "None" else value


def _home(value: Any) -> Any:
    """veRL fills in the ~ of a path by itself."""
    if isinstance(value, list):
        return [_home(v) for v in value]
    return re.sub(r"^~(?=/)", "${oc.env:HOME}", value) if isinstance(value, str) else value


# ------------------------------------------------------------------------------------------------------- references


def _resolved(given: list[Given], made: Translation) -> list[Given]:
    """Values with `${a.b}` replaced by what the source says of a.b; those that lead nowhere are left out."""
    values = {g.key: g.value for g in given}
    kept = []
    for one in given:
        value = one.value
        for _ in range(9):
            value, before = _once(value, values), value
            if value == before:
                break
        dangling = next(filter(None, map(REFERENCE.search, filter(_is_text, _parts(value)))), None)
        if dangling:
            made.leave(one, f"refers to {dangling[1]}, which is not given.")
        else:
            kept.append(Given(one.path, _home(value), one.line))
    return kept


def _parts(value: Any) -> list:
    return value if isinstance(value, list) else [value]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _once(value: Any, values: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_once(v, values) for v in value]
    if not isinstance(value, str):
        return value
    whole = REFERENCE.fullmatch(value)
    if whole:
        return values.get(whole[1], value if whole[2] is None else scalar(whole[2]))
    return REFERENCE.sub(lambda m: str(values.get(m[1], m[0])), value)
