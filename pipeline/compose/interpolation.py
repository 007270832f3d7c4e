"""Resolves `${other.key}` and `${oc.env:VARIABLE}` in a composition; reports missing targets and cycles.

Each stage is the settings of the run with its entry merged over them, before anything is resolved, so an interpolation
means the values of the stage that it is used in. `${stages.0.seed}` is the value that the first stage has: OmegaConf
resolves it among the settings of that stage. Resolved, an entry has what it sets and what differs because of it.

Environment variables are texts. Their values are marked (pipeline/settings/setting.py) and converted to the
type of their setting; the value of a secret never enters a configuration: its `${oc.env:VARIABLE}` stays.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from ouroboros.pipeline.settings import secrets
from ouroboros.pipeline.settings.setting import FromEnvironment, merge, own_name
from ouroboros.pipeline.store.errors import Problem
from ouroboros.pipeline.store.secret_names import names_secret

COLUMN = "column"  # resolver: name -> the reference itself, which a function is given the column for
STAGE = "ouro.stage"  # resolver: index -> settings of that stage
PATHS = ("inputs", "checkpoint_root_dir")  # settings with a path, besides those named *path


def unreadable(text: str) -> str | None:
    """Returns why OmegaConf cannot parse a text's interpolations, or None. Quotes nothing from the text."""
    from omegaconf import grammar_parser
    from omegaconf.errors import GrammarParseError

    if "${" not in text:
        return None
    try:
        grammar_parser.parse(text)
    except GrammarParseError:
        wrong = "'${' without its '}'" if text.count("${") > text.count("}") else "the content of '${...}' is no name"
        return f"{wrong}. Needed ${{section.key}} or ${{oc.env:VARIABLE}}."
    return None


def resolved(composed: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Returns a composition in plain dicts and lists with interpolations resolved, except secrets, and paths below the
    home directory in full; and the problems. A value that cannot be resolved is left out."""
    run = {key: value for key, value in composed.items() if key != "stages"}
    entries = composed["stages"] if isinstance(composed["stages"], list) else []
    stages = [merge(run, entry) for entry in entries]
    with _trees([run, *stages], secrets.taken_as_secrets(composed)) as tree:
        made, problems = _fill(partial(tree, 0), run, "")
        own = []
        for at, (entry, stage) in enumerate(zip(entries, stages, strict=True)):
            found, wrong = _fill(partial(tree, at + 1), stage, "") if isinstance(entry, dict) else (entry, [])
            own.append(_own(entry, found, made) if isinstance(entry, dict) else entry)
            problems += [problem.below(f"stages.{at}") for problem in wrong if problem not in problems]
    whole = {**made, "stages": own if isinstance(composed["stages"], list) else composed["stages"]}
    return whole, [_by_name(one, stage_names(whole["stages"])) for one in [*problems, *secrets.leaks(whole)]]


def stage_names(stages: Any) -> list[str]:
    """Returns the names of the entries of `stages`, whatever their type."""
    return ([str(entry.get("stage_name") if isinstance(entry, dict) else entry) for entry in stages]
            if isinstance(stages, list) else [])


def _by_name(problem: Problem, names: list[str]) -> Problem:
    """Returns the problem of a stage's entry by the stage's name in place of its index."""
    of_entry = re.fullmatch(r"stages\.(\d+)\.(.+)", problem.key)
    return problem.but(key=of_entry[2], stages=[names[int(of_entry[1])]]) if of_entry else problem


def _own(entry: dict[str, Any], stage: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """Returns what an entry sets, and what else its stage has other than the run. stage, run: resolved."""
    made = {}
    for name in (one for one in [*entry, *(one for one in stage if one not in entry)] if one in stage):
        value = stage[name]
        sections = [value, run.get(name), entry.get(name, {})]
        if all(isinstance(one, dict) for one in sections):
            value = _own(sections[2], value, sections[1])
            differs = bool(value)
        else:
            differs = name not in run or (value is not run[name] and value != run[name])  # nan is not equal to itself
        if differs or name in entry:
            made[name] = value
    return made


@contextlib.contextmanager
def _trees(settings: list[Any], secret: set[str]) -> Iterator[Callable[[int], Any]]:
    """Yields i -> the run (0) or a stage as a container of OmegaConf that sees `stages`; slow, so made when asked for.

    secret: variables that a setting takes as a secret. Of these, and of those whose names mark them, an interpolation
    gives the reference, within the block.
    """
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    def env(name: str, *default: Any) -> Any:
        if name in secret or names_secret(name, is_variable=True):
            return secrets.reference(name, *default)
        value = oc.env(name, *default)
        return FromEnvironment(value) if isinstance(value, str) else value

    seen = [f"${{{STAGE}:{at}}}" for at, _ in enumerate(settings[1:])]
    tree = cache(lambda i: OmegaConf.create({**settings[i], "stages": seen} if isinstance(settings[i], dict) else {}))
    OmegaConf.register_new_resolver("oc.env", env, replace=True)
    OmegaConf.register_new_resolver(STAGE, lambda at: tree(at + 1), replace=True)
    OmegaConf.register_new_resolver(COLUMN, lambda name: f"${{{COLUMN}:{name}}}", replace=True)
    try:
        yield tree
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
        OmegaConf.clear_resolver(STAGE)
        OmegaConf.clear_resolver(COLUMN)


def _fill(node: Callable[[], Any], raw: Any, key: str) -> tuple[Any, list[Problem]]:
    """Returns the resolved values of one container, without invalid ones, and their problems. node: gives the container
    of OmegaConf. raw: its plain values, at `key`."""
    made, problems = {}, []
    for name, value in raw.items() if isinstance(raw, dict) else enumerate(raw):
        full, wrong = f"{key}.{name}" if key else str(name), []
        if isinstance(value, (dict, list)):
            value, wrong = _fill(lambda name=name: node()[name], value, full)
        elif isinstance(value, str) and "${" in value and not (secrets.is_secret(full) or secrets.named_in(value)):
            value, wrong = _value(node(), name, value, full)
            if wrong:  # the setting gets its default
                problems += wrong
                continue
        made[name] = _at_home(full, value) if isinstance(value, str) else value
        problems += wrong
    return made if isinstance(raw, dict) else list(made.values()), problems


def _value(node, name: Any, text: str, key: str) -> tuple[Any, list[Problem]]:
    """Returns the value of an interpolation, or the problem with it."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        found = node[name]
        return OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found, []
    except (OmegaConfBaseException, RecursionError) as error:
        return None, [_unresolved(key, text, error)]


def _at_home(key: str, text: str) -> str:
    """Returns the text of a setting, a path with its `~` expanded to the home directory."""
    is_path = text.startswith("~/") and (own_name(key) in PATHS or own_name(key).split("_")[-1] == "path")
    return type(text)(Path(text).expanduser()) if is_path else text


def _unresolved(key: str, value: str, error: Exception) -> Problem:
    """Returns the problem of an interpolation with a missing target, or in a cycle."""
    missing = re.search(r"Environment variable '(\w+)' not found", str(error))
    if missing:
        return Problem(key, f"the environment variable {missing[1]} is not set.", f"Set it, or give a default: "
                       f"${{oc.env:{missing[1]},default}}.")
    if isinstance(error, RecursionError) or re.search("ecursi|parent node", str(error)):
        return Problem(key, "the interpolation refers to itself.", found=value)
    return Problem(key, f"the interpolation cannot be resolved: {str(error).splitlines()[0]}", found=value)
