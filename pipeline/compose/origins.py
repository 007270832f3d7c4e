"""Finds where the value of a setting comes from: the last layer of a composition that has the key.

Hydra's defaults list gives the order of the files; each file is read again here on its own.
"""

from pathlib import Path
from typing import Any

from ouroboros.pipeline.compose.compose import read
from ouroboros.pipeline.compose.conf_files import directories, file_of, search_path
from ouroboros.pipeline.compose.recipe import merged, renamed_components
from ouroboros.pipeline.settings.algorithms import functions, parts
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.secrets import typed
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.store.errors import Problem
from ouroboros.pipeline.store.files import CONF

DEFAULT, COMMAND_LINE = "the schema's default", "the command line"


def origin(overrides: list[str], key: str) -> str:
    """Returns the origin of the run-wide value of a dotted key. overrides: of a composition without problems."""
    return _typed(overrides, key) or next(
        (name for name, values in reversed(_files(overrides)) if _has(values, key)), DEFAULT)


def stage_origin(config: Config, entry: dict[str, Any], key: str, overrides: list[str]) -> str:
    """Returns the origin of a key's value in one stage: its entry, the algorithm, or as for the whole run."""
    typed = _typed(overrides, f"stages.{entry.get('stage_name')}.{key}")
    if typed:
        return typed
    if _has(entry, key):
        return f"the stage's own entry ({origin(overrides, 'stages')})"
    if key.startswith("algorithm."):
        return _of_algorithm(config, entry, key, overrides)
    return origin(overrides, key)


def _of_algorithm(config: Config, entry: dict[str, Any], key: str, overrides: list[str]) -> str:
    """Does the same for an algorithm setting that the stage does not set: the run's where it applies, else the
    type's own, or both for arguments."""
    algorithm = merged(config, entry).algorithm
    kind, name = algorithm.algorithm_type, key.removeprefix("algorithm.")
    part = name.partition("_args")[0] if "_args" in name else None
    own, called = parts(kind), functions(algorithm)
    of_type = _has(own, name) and (part is None or called[part] == own.get(part))
    of_run = _given(algorithm, name)
    of_its_own = f"the algorithm's own (conf/algorithm/{kind}.yaml)"
    if of_run and of_type and name == f"{part}_args":
        return f"{origin(overrides, key)}; over {of_its_own}"
    if of_type and not of_run:
        return of_its_own
    if part in renamed_components(config, entry) and not of_run and _given(config.algorithm, f"{part}_args"):
        theirs = functions(config.algorithm)[part]
        return f"{DEFAULT}: what the run says is for {theirs}, and {part} is {called[part] or 'none'} here"
    return origin(overrides, key)


def _given(values: Any, key: str) -> bool:
    """Returns whether nested settings have more under a key than null or an empty section."""
    return at(values, key) not in (None, {})


def _typed(overrides: list[str], key: str) -> str | None:
    """Describes the last override of a key; choosing a file (`cluster=cpu`) does not count."""
    values = [(one.key_or_group, one.input_line.lstrip("+")) for one in reversed(read(overrides).values)]
    return next((f"{COMMAND_LINE}: {typed(word)}" for name, word in values if _touches(name, key)), None)


def _touches(one: str, other: str) -> bool:
    """Returns whether one key equals the other, or is above or below it."""
    return one == other or one.startswith(other + ".") or other.startswith(one + ".")


def _has(values: Any, key: str) -> bool:
    """Returns whether nested settings set a key, or a list above it, which is replaced as a whole."""
    for part in key.split("."):
        if not isinstance(values, dict):
            return isinstance(values, list)
        if part not in values:
            return False
        values = values[part]
    return True


def located(problems: list[Problem], overrides: list[str]) -> list[Problem]:
    """Returns problems with the file and line that set the value; without one where the command line or a default does.

    overrides: of a composition whose files can be read.
    """
    import yaml

    with_files = [(_shown(path), package, yaml.compose(path.read_text(encoding="utf-8")))
                  for path, package in reversed(_layers(overrides))] if any(one.key for one in problems) else []

    on_command_line = [one.key_or_group for one in read(overrides).values]

    def place(problem: Problem) -> tuple[str, int] | None:
        keys = [f"stages.{name}.{problem.key}" for name in problem.stages[:1]] + [problem.key]
        for key in keys:
            if any(_touches(one, key) for one in on_command_line):
                return None
            for file, package, node in with_files:
                if key.startswith(package) and (line := _line(node, key.removeprefix(package).split("."))):
                    return file, line
        return None

    problems = [one if isinstance(one, Problem) else Problem(needed=one) for one in problems]
    found = [(problem, None if problem.file or not problem.key else place(problem)) for problem in problems]
    return [problem.but(file=there[0], line=there[1]) if there else problem for problem, there in found]


def _line(node, parts: list[str]) -> int | None:
    """Returns the line of a key in a YAML file's nodes, from 1. A stage is found by its name."""
    import yaml

    line = None
    for part in parts:
        if isinstance(node, yaml.MappingNode):
            pair = next(((key, value) for key, value in node.value if key.value == part), None)
            if pair is None:
                return None
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode):
            named = {_text(one, "stage_name"): one for one in node.value} | {
                str(i): one for i, one in enumerate(node.value)}
            if part not in named:
                return None
            node = named[part]
            line = node.start_mark.line + 1
        else:
            return None
    return line


def _text(node, key: str) -> str | None:
    """Returns the text under a key of a mapping's node."""
    pairs = node.value if isinstance(node.value, list) else ()
    return next((value.value for name, value in pairs if name.value == key), None)


def _files(overrides: list[str]) -> list[tuple[str, dict]]:
    """Returns (name, values) of every file of the composition, in merge order."""
    import yaml

    layers = []
    for path, package in _layers(overrides):
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        for part in reversed([p for p in package.split(".") if p]):
            values = {part: values}
        layers.append((_shown(path), values))
    return layers


def _layers(overrides: list[str]) -> list[tuple[Path, str]]:
    """Returns (file, section that its content is merged into, with a dot at its end) in merge order."""
    from hydra.types import RunMode

    with search_path(directories()) as loader:
        listed = loader.compute_defaults_list("config", [*read(overrides).choices], RunMode.RUN).defaults
    found = [(file_of(layer.config_path), layer.package) for layer in listed]
    return [(path, f"{package}." if package else "") for path, package in found if path is not None]


def _shown(path: Path) -> str:
    """Formats a file of ours relative to the repository, any other as found."""
    return str(path.relative_to(CONF.parent)) if path.is_relative_to(CONF) else str(path)
