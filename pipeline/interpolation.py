"""Fills in `${other.key}` and `${oc.env:VARIABLE}` of a composition, and names what leads nowhere or in a circle.

The environment knows texts alone. What comes from there is therefore marked, and read as the type that its setting
wants (pipeline/schema.py); a text that stands in a file, in quotes, is meant as one.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline import secrets
from pipeline.secret_marks import names_secret

ENVIRONMENT = re.compile(r"\$\{\s*oc\.env\s*:")
NAMED = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")


class FromEnvironment(str):
    """A text that an interpolation of the environment gave, whole or in part."""

    def as_value(self) -> Any:
        """What the text would be in a YAML file: a number, true, a list; the plain text when it is nothing else."""
        from pipeline.bridges.source import scalar

        return scalar(str(self))


def settled(value: Any) -> Any:
    """A copy of a nest in which every text of the environment is what it would be in a YAML file."""
    if isinstance(value, dict):
        return {name: settled(part) for name, part in value.items()}
    if isinstance(value, list):
        return [settled(part) for part in value]
    return value.as_value() if isinstance(value, FromEnvironment) else value


@dataclass
class Filling:
    """whole: the composition as plain dicts and lists, unresolved. secret: variables that a setting takes as a secret.

    taken: the variables that OmegaConf took from the environment, which is emptied before every setting.
    """

    whole: dict
    secret: set[str]
    taken: set[str]
    problems: list[str]

    def misdirected(self, key: str) -> list[str]:
        """A line for every secret that was filled into a setting."""
        found = [name for name in self.taken if name in self.secret or names_secret(name, is_variable=True)]
        return [secrets.misdirected(key, name) for name in sorted(found)]


def resolved(composed, problems: list[str]) -> dict[str, Any]:
    """Plain dicts and lists with every interpolation filled in; those of secrets stay (pipeline/secrets.py).

    Texts of the environment are FromEnvironment.
    """
    from omegaconf import OmegaConf

    whole = OmegaConf.to_container(composed, resolve=False)
    with _recorded() as taken:
        made = _fill(composed, whole, "", Filling(whole, secrets.taken_as_secrets(whole), taken, problems))
    problems += secrets.leaks(made)
    return made


@contextlib.contextmanager
def _recorded() -> Iterator[set[str]]:
    """Meanwhile the set gets the name of every variable that OmegaConf takes, however the interpolation is spelled."""
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
    """node: an OmegaConf container. raw: the same as plain dicts and lists. What is wrong is left out."""
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
            if not problems:  # else its default stands in
                made[name] = found
        else:
            made[name] = value
    return made if isinstance(raw, dict) else list(made.values())


def _filled(node, name: Any, value: str, full: str, filling: Filling) -> tuple[Any, list[str]]:
    """What an interpolation stands for, and what is wrong with it."""
    from omegaconf.errors import OmegaConfBaseException

    filling.taken.clear()
    try:
        found = _marked(_plain(node[name]), value, filling.whole)
    except (OmegaConfBaseException, RecursionError) as error:
        return None, [_unresolved(full, value, error)]
    return found, filling.misdirected(full)


def _plain(value: Any) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _marked(value: Any, raw: Any, whole: dict) -> Any:
    """A value with the texts in it that came from the environment marked. raw: the same, interpolations unresolved."""
    if isinstance(raw, str):
        section = _at(whole, raw) if isinstance(value, (dict, list)) else None
        if section is not None:  # `${section}` stands for all that is below it
            return _marked(value, section, whole)
        return FromEnvironment(value) if isinstance(value, str) and _of_environment(raw, whole) else value
    if isinstance(value, dict) and isinstance(raw, dict):
        return {name: _marked(part, raw[name], whole) for name, part in value.items()}
    if isinstance(value, list) and isinstance(raw, list):
        return [_marked(part, one, whole) for part, one in zip(value, raw, strict=True)]
    return value


def _of_environment(text: str, whole: dict, visited: tuple[str, ...] = ()) -> bool:
    """Whether a text names the environment, or a setting that does."""
    if ENVIRONMENT.search(text):
        return True
    named = [f"${{{key}}}" for key in NAMED.findall(text)]
    return any(isinstance(there := _at(whole, one), str) and _of_environment(there, whole, (*visited, one))
               for one in named if one not in visited)


def _at(whole: dict, text: str) -> Any:
    """What stands, unresolved, where `${a.b}` points; None for any other text."""
    found: Any = whole
    match = NAMED.fullmatch(text)
    for part in match[1].split(".") if match else ():
        if isinstance(found, list) and part.isdigit() and int(part) < len(found):
            found = found[int(part)]
        else:
            found = found.get(part) if isinstance(found, dict) else None
    return found if match else None


def _unresolved(key: str, value: str, error: Exception) -> str:
    """The line for an interpolation that leads nowhere, or in a circle."""
    missing = re.search(r"Environment variable '(\w+)' not found", str(error))
    if missing:
        return (f"key '{key}' wants the environment variable {missing[1]}, which is not set. Set it, or give a "
                f"default: ${{oc.env:{missing[1]},default}}.")
    if isinstance(error, RecursionError) or "ecursive" in str(error):
        return f"key '{key}': {value} leads in a circle."
    return f"key '{key}': {value} cannot be filled in: {str(error).splitlines()[0]}"
