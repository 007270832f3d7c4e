"""Resolves `${other.key}` and `${oc.env:VARIABLE}` in a composition; reports missing targets and cycles.

Environment variables are text only. Their values are therefore marked and converted to the type of their setting
(pipeline/settings/schema.py); quoted text in a file remains text.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ouroboros.pipeline.settings import secrets
from ouroboros.pipeline.settings.environment_values import FromEnvironment
from ouroboros.pipeline.settings.setting import at, own_name, plain
from ouroboros.pipeline.store.errors import Problem
from ouroboros.pipeline.store.secret_names import names_secret

ENVIRONMENT = re.compile(r"\$\{\s*oc\.env\s*:")
# another setting, `${a.b}`, `${ a[b] }` or, relative to the current one, `${.b}`; a resolver (oc.env:HOME) has a colon
NAMED = re.compile(r"\$\{\s*(\.*)([^\s${}:]+)\s*\}")


def settings_named(text: str, key: str) -> list[str]:
    """Returns the settings that a text's interpolations refer to, dotted from the root. key: of the text itself."""
    return [from_root(match, key) for match in NAMED.finditer(text)]


def from_root(match: re.Match, key: str) -> str:
    """Converts a relative reference: `${.b}` is in the same section as the text, `${..b}` one section above."""
    dots, named = match.groups()
    above = key.split(".")[:-len(dots)] if dots else []
    return ".".join([*above, *re.findall(r"[^.\[\]]+", named)])


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


@dataclass
class Filling:
    """whole: the composition as plain dicts and lists, unresolved. secret: variables that a setting takes as a secret.

    taken: the variables that OmegaConf read from the environment, cleared before every setting.
    """

    whole: dict
    secret: set[str]
    taken: set[str]
    problems: list[Problem]

    def misdirected(self, key: str) -> list[Problem]:
        """Lists the secrets that were resolved into other settings."""
        found = [name for name in self.taken if name in self.secret or names_secret(name, is_variable=True)]
        return [secrets.misdirected(key, name) for name in sorted(found)]


def resolved(whole: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Returns plain dicts and lists with interpolations resolved, except secrets (pipeline/settings/secrets.py), and
    paths below the home directory in full.

    Values from the environment are FromEnvironment.
    """
    from omegaconf import OmegaConf

    with _recorded() as taken:
        filling = Filling(whole, secrets.taken_as_secrets(whole), taken, problems)
        made = _fill(OmegaConf.create(whole), whole, "", filling)
    problems += secrets.leaks(made)
    return plain(made, _at_home)


def _at_home(key: str, value: Any) -> Any:
    """Returns a setting's value, a path with its `~` expanded to the home directory."""
    is_path = own_name(key) in ("inputs", "checkpoint_root_dir") or own_name(key).split("_")[-1] == "path"
    return type(value)(Path(value).expanduser()) if is_path and str(value).startswith("~/") else value


@contextlib.contextmanager
def _recorded() -> Iterator[set[str]]:
    """Records in the set, for the block, every variable OmegaConf reads, however the interpolation is written."""
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    taken: set[str] = set()

    def env(name: str, *default: Any) -> Any:
        taken.add(name)
        return oc.env(name, *default)

    OmegaConf.register_new_resolver("oc.env", env, replace=True)
    try:
        yield taken
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def _fill(node, raw: Any, key: str, filling: Filling) -> Any:
    """Resolves one container, omitting invalid values. node: an OmegaConf container. raw: its plain values."""
    pairs = raw.items() if isinstance(raw, dict) else enumerate(raw)
    made = {}
    for name, value in pairs:
        full = f"{key}.{name}" if key else str(name)
        if isinstance(value, (dict, list)):
            made[name] = _fill(node[name], value, full, filling)
        elif isinstance(value, str) and "${" in value and not (
                secrets.is_secret(full) or secrets.named_in(value)):
            found, problems = _filled(node, name, value, full, filling)
            filling.problems += problems
            if not problems:  # otherwise the setting gets its default
                made[name] = found
        else:
            made[name] = value
    return made if isinstance(raw, dict) else list(made.values())


def _filled(node, name: Any, value: str, full: str, filling: Filling) -> tuple[Any, list[Problem]]:
    """Returns the value of an interpolation, and the problems with it."""
    from omegaconf.errors import OmegaConfBaseException

    filling.taken.clear()
    try:
        found = _marked(_plain(node[name]), value, full, filling.whole)
    except (OmegaConfBaseException, RecursionError) as error:
        return None, [_unresolved(full, value, error)]
    return found, filling.misdirected(full)


def _plain(value: Any) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _marked(value: Any, raw: Any, key: str, whole: dict) -> Any:
    """Marks the texts in a value that came from the environment. raw: the same, interpolations unresolved,
    at `key`."""
    if isinstance(raw, str):
        match = NAMED.fullmatch(raw) if isinstance(value, (dict, list)) else None
        if match and (section := at(whole, named := from_root(match, key))) is not None:
            return _marked(value, section, named, whole)  # `${section}` refers to everything below it
        return FromEnvironment(value) if isinstance(value, str) and _of_environment(raw, key, whole) else value
    if isinstance(value, dict) and isinstance(raw, dict):
        return {name: _marked(part, raw[name], f"{key}.{name}", whole) for name, part in value.items()}
    if isinstance(value, list) and isinstance(raw, list):
        return [_marked(part, one, f"{key}.{index}", whole)
                for index, (part, one) in enumerate(zip(value, raw, strict=True))]
    return value


def _of_environment(text: str, key: str, whole: dict, visited: tuple[str, ...] = ()) -> bool:
    """Returns whether a text at `key` refers to the environment, or to a setting that does."""
    if ENVIRONMENT.search(text):
        return True
    return any(isinstance(there := at(whole, one), str) and _of_environment(there, one, whole, (*visited, one))
               for one in settings_named(text, key) if one not in visited)


def _unresolved(key: str, value: str, error: Exception) -> Problem:
    """Returns the problem of an interpolation with a missing target, or in a cycle."""
    missing = re.search(r"Environment variable '(\w+)' not found", str(error))
    if missing:
        return Problem(key, f"the environment variable {missing[1]} is not set.", f"Set it, or give a default: "
                       f"${{oc.env:{missing[1]},default}}.")
    if isinstance(error, RecursionError) or re.search("ecursi|parent node", str(error)):
        return Problem(key, "the interpolation refers to itself.", found=value)
    return Problem(key, f"the interpolation cannot be resolved: {str(error).splitlines()[0]}", found=value)
