"""Finds a script's command that starts veRL, and its overrides; reports the rest of the script.

Unread parts that may matter are `skipped`, assumptions are `assumed`, and what has no effect on a recipe is `passed`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ouroboros.commands.bridges.bash import Argument, Command, Script
from ouroboros.commands.bridges.source import Given
from ouroboros.commands.bridges.translation import Translation
from ouroboros.commands.bridges.verl_entry import OTHER, READ, RL, SFT, Entry, entry_of, launcher, refused
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.yaml_values import scalar

OVERRIDE = re.compile(r"(?P<sign>\+{0,2}|~)(?P<key>[A-Za-z_][\w/-]*(?:\.[\w*-]+)*)(?:@[\w.]+)?=(?P<value>.*)",
                      re.DOTALL)
DELETION = re.compile(r"~[\w./@-]+")
SECTIONS = ("actor_rollout_ref", "algorithm", "critic", "custom_reward_function", "data", "engine", "global_profiler",
            "model", "optim", "ray_init", "ray_kwargs", "reward", "reward_model", "trainer", "transfer_queue")
ENVIRONMENT = re.compile(r"\$\{oc\.env:\w+\}")
KEY = re.compile(r"[+~]{0,2}(?P<section>[A-Za-z_]\w*)\.\w")
HYDRA = re.compile(r"--?(config-name|config-path|config-dir|cn|cp|cd)(=.*)?")
# configurations that veRL itself ships: a recipe has their defaults
OWN_CONFIGURATION = re.compile(r"--?(config-name|cn)[= ](_?(generated_)?(ppo|dapo|fully_async_ppo|one_step_off_ppo)_"
                               r"(megatron_)?trainer|sft_trainer(_engine)?)(\.yaml)?( |$)")
PROCESSES = re.compile(r"--(nproc[-_]per[-_]node|nnodes)(?:=(?P<value>.*))?")


@dataclass
class Launch:
    """What a script starts. kind: RL or SFT. options: of torchrun, by the equivalent veRL key."""

    kind: str
    entry: Entry | None = None
    given: dict[str, Given] = field(default_factory=dict)
    unknown: dict[str, tuple[Given, str]] = field(default_factory=dict)
    options: dict[str, Given] = field(default_factory=dict)


def read_launch(script: Script, made: Translation) -> Launch:
    """Returns the overrides of the command that starts veRL; without one, every override in the script."""
    made.skipped += script.skipped
    made.assumed += script.assumed
    command = _chosen(script, made)
    entry = _entry(command) if command else None
    launch = Launch(RL, entry)
    for one in [command] if command else script.commands:
        _arguments(launch, made, one, is_launch=bool(command))
    launch.kind = entry.kind if entry else kind_of_keys([*launch.given, *launch.unknown])
    if command:
        _tell_doubts(command, made)
    _tell_rest(script, command, made)
    if not command and not launch.given and not launch.unknown:
        unread = "".join(f" Line {line}: {what}." for line, what in sorted(made.skipped + made.assumed))
        raise ConfigError(f"{made.source}: found no command that starts veRL, and no override such as "
                          "data.train_batch_size=1024. Needed a launch script (python3 -m verl.trainer.main_ppo ...), "
                          f"overrides, or YAML with veRL's keys. Programs that are read: {READ}.{unread}")
    return launch


def kind_of_keys(keys: list[str]) -> str:
    """Infers the kind from keys alone: the SFT trainer has its optimizer and its model at the top level."""
    sections = {key.partition(".")[0] for key in keys}
    of_rl = {"actor_rollout_ref", "algorithm", "critic", "reward_model"} & sections
    of_sft = {"optim", "model"} & sections or {"data.messages_key", "data.max_length", "data.pad_mode"} & set(keys)
    return SFT if not of_rl and of_sft else RL


def _chosen(script: Script, made: Translation) -> Command | None:
    """Selects the command that starts veRL: RL before SFT, certain before conditional. Rejects any other."""
    entries = [(command, entry) for command in script.commands if (entry := _entry(command))]
    known = [(command, entry) for command, entry in entries if entry.kind != OTHER]
    if not known:
        if entries:
            raise refused(made.source, entries[0][1])
        return None
    best, _ = max(known, key=lambda one: (one[1].kind == RL, one[0].is_sure))
    made.skipped += [(command.line, f"another command that starts veRL; that of line {best.line} was read")
                     for command, _ in entries if command is not best]
    return best


def _entry(command: Command) -> Entry | None:
    """Returns the program that a command starts: of veRL, or another one with overrides."""
    texts = [argument.text for argument in command.arguments]
    found = next((entry for text in texts if (entry := entry_of(text))), None)
    if found or not any(match and "." in match["key"] for match in map(OVERRIDE.fullmatch, texts)):
        return found
    alone = _is_key(texts[0]) or _overrides(command) < 2  # a line of overrides starts nothing
    started = launcher(texts) or (None if alone else texts[0])
    return Entry(started, OTHER) if started else None


def _overrides(command: Command) -> int:
    return sum(_is_verls(argument.text) for argument in command.arguments)


def _is_verls(text: str) -> bool:
    return bool(OVERRIDE.fullmatch(text)) and _is_key(text)


def _is_key(text: str) -> bool:
    """Returns whether a word starts with the name of a veRL key."""
    match = KEY.match(text)
    return bool(match) and match["section"] in SECTIONS


def _arguments(launch: Launch, made: Translation, command: Command, is_launch: bool) -> None:
    """Sorts the words of a command: options of torchrun, overrides, and others. is_launch: it starts veRL."""
    started, before = False, ""
    is_own = bool(OWN_CONFIGURATION.search(" ".join(argument.text for argument in command.arguments)))
    for position, argument in enumerate(command.arguments):
        match = OVERRIDE.fullmatch(argument.text)
        option = PROCESSES.fullmatch(argument.text) if is_launch and not started else None
        if option:
            _option(launch, command, position, option)
        elif match and (_is_verls(argument.text) or (started and launch.entry)):
            _take(launch, made, match, argument)
        elif is_launch and is_own and HYDRA.fullmatch(argument.text):
            made.passed.append((argument.line, f"{argument.text}: veRL's own configuration, whose defaults are known"))
        elif is_launch:
            _note(made, argument, before if started else None)
        elif _is_key(command.arguments[0].text):
            made.lose(argument.line, f"{argument.text}: is no override; needed key=value, without blanks")
        started = started or bool(entry_of(argument.text)) or (bool(match) and launch.entry is None)
        before = argument.text


def _option(launch: Launch, command: Command, position: int, option: re.Match) -> None:
    """Reads `--nproc_per_node=8`, or 8 as the next word: GPUs per machine, otherwise trainer.n_gpus_per_node."""
    key = "trainer.nnodes" if option[1] == "nnodes" else "trainer.n_gpus_per_node"
    argument, following = command.arguments[position], command.arguments[position + 1:position + 2]
    value = option["value"] if option["value"] is not None or not following else following[0].text
    problem = argument.problem or (following[0].problem if option["value"] is None and following else None)
    given = Given(tuple(key.split(".")), value if problem else scalar(value or ""), argument.line)
    if problem and key not in launch.given:
        launch.unknown[key] = (given, problem)
    elif value and not problem:
        launch.options[key] = given


def _take(launch: Launch, made: Translation, match: re.Match, argument: Argument) -> None:
    """Applies one override: as in Hydra the last of a key counts, which is reported."""
    value, problem = (match["value"], argument.problem) if argument.problem else _parsed(match["value"])
    for key, part in _leaves(match["key"], value):
        given = Given(tuple(key.split(".")), part, argument.line)
        if match["sign"] == "~":
            made.leave(given, "deletes a key of veRL's own configuration, which is not read.")
            continue
        first = launch.given.pop(key, None) or launch.unknown.pop(key, (None, ""))[0]
        if first and (first.value != given.value or problem):
            made.assumed.append((argument.line, f"{key} is given again, first in line {first.line}: the last one "
                                                "counts"))
        if problem:
            launch.unknown[key] = (given, problem)
        else:
            launch.given[key] = given


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the settings of a mapping, which Hydra merges key by key; another value is one itself."""
    for name, below in value.items() if isinstance(value, dict) and value else ():
        yield from _leaves(f"{key}.{name}", below)
    if not isinstance(value, dict) or not value:
        yield key, value


def _parsed(text: str) -> tuple[Any, str | None]:
    """Returns the value of an override as parsed by Hydra, or the text itself, and why it is not known."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(f"k={text}")
        if parsed.is_sweep_override():
            return text, "the values of a sweep, one for each run"
        value = parsed.value()
    except (HydraException, ValueError, RecursionError):
        return scalar(text) if not text.lstrip().startswith(("[", "{", "&", "*", "!")) else text, None
    return None if value == "None" else value, None


def _note(made: Translation, argument: Argument, before: str | None) -> None:
    """Reports words of the launch command that are not overrides. before: the preceding word, after veRL's entry."""
    is_unknown = argument.problem or ENVIRONMENT.fullmatch(argument.text)  # not the value of an option, as far as known
    if option := HYDRA.fullmatch(argument.text):
        made.unread += [argument.line] if option[1] not in ("config-dir", "cd") else []
        made.skipped.append((argument.line, f"{option[0]}: names a file of the configuration, which is not read; only "
                                            "what the command itself says is"))
    elif DELETION.fullmatch(argument.text):
        made.skipped.append((argument.line, f"{argument.text}: deletes a key of veRL's own configuration"))
    elif is_unknown and before is not None and not before.startswith("--"):
        made.unread.append(argument.line)
        holds = argument.problem or "what the environment holds"
        made.skipped.append((argument.line, f"{argument.text}: holds {holds}; it may set any key"))
    elif argument.problem:
        made.skipped.append((argument.line, f"{argument.text}: holds {argument.problem}"))
    elif before is not None and not before.startswith("-") and not argument.text.startswith("-"):
        made.skipped.append((argument.line, f"{argument.text}: is no override"))


def _tell_doubts(chosen: Command, made: Translation) -> None:
    if not chosen.is_sure:
        made.assumed.append((chosen.line, "whether the command that starts veRL runs depends on what programs print, "
                                          "none of which ran: it was read as if it did"))
    if chosen.times > 1:
        made.assumed.append((chosen.line, f"the command that starts veRL runs {chosen.times} times: what is not the "
                                          "same each time is unknown"))


def _tell_rest(script: Script, chosen: Command | None, made: Translation) -> None:
    """Reports overrides outside the command, as after a missing backslash."""
    for command in script.commands if chosen else ():
        first = command.arguments[0].text
        if command is not chosen and _is_verls(first):
            made.lose(command.line, f"{first}: stands outside the command that starts veRL (a backslash missing at the "
                                    "end of the line above?)")
        elif _overrides(command) and not _entry(command):
            made.skipped.append((command.line, f"{first}: is not the command that starts veRL; its overrides are not "
                                               "read"))
