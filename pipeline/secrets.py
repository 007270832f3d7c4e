"""Secrets: api keys, passwords, tokens. They live in the environment and reach no file, log or monitor.

A setting whose name says that it is a secret holds the text `${oc.env:VARIABLE}` and nothing else; where the name of
the *variable* says so, the text may stand in any free argument, alone or within a text (`Bearer ${oc.env:API_KEY}`).
That text is what files keep and identities hash; only a stage's own process, in memory, puts the variable's value in
its place.
"""

import os
import re
from functools import cache
from typing import Any

from pipeline.config import walk
from pipeline.errors import SECRET_VARIABLE, ConfigError

SECRETS = re.compile(r"(^|_)(secrets?|pass(word|wd|phrase)|pwd|credentials?)(_|$)"
                     r"|(^|_)(api|secret|access|private|auth|openai)_?keys?$"
                     r"|(^|_)(access|auth|api|bearer|hf)_?tokens?$|^tokens?$", re.I)
REFERENCE = re.compile(r"\$\{oc\.env:(\w+)\}")
WITH_DEFAULT = re.compile(r"\$\{oc\.env:\s*(\w+)\s*(,[^}]*)?\}")
SHORTEST = 4  # characters: a shorter value is found by chance
IN_ADDRESS = re.compile(r"://[^/@\s:]*:[^/@\s]+@")  # scheme://user:password@host


def is_secret(key: str) -> bool:
    """Whether a part of a dotted key names a secret: what stands below one is secret too."""
    return any(SECRETS.search(part) for part in key.split("."))


def named_in(text: str) -> list[str]:
    """The variables in `${oc.env:VARIABLE}` of a text whose names say that they are secrets."""
    return [m[1] for m in WITH_DEFAULT.finditer(text) if SECRET_VARIABLE.search(m[1])]


def problems_of(value: Any, key: str = "") -> list[str]:
    """Secrets that are written out, and variables that are not set, one line each."""
    if isinstance(value, dict):
        return [p for k, v in value.items() for p in problems_of(v, f"{key}.{k}" if key else str(k))]
    if isinstance(value, list):
        return [p for i, v in enumerate(value) for p in problems_of(v, f"{key}.{i}")]
    if isinstance(value, str) and IN_ADDRESS.search(value):
        return [f"{key}: the address carries a password, and a configuration is written to files. Leave it out, and "
                "give it by the environment (MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD for MLflow)."]
    if not (isinstance(value, str) and value):
        return []
    if not is_secret(key):
        return _misplaced(key, value) if named_in(value) else []
    named = REFERENCE.fullmatch(value)
    if not named:
        return [f"{key}: a secret does not go into a configuration, which is written to files. Put it into the "
                f"environment and write {key.rsplit('.', 1)[-1]}: ${{oc.env:VARIABLE}}."]
    return [] if named[1] in os.environ else [f"key '{key}' wants the environment variable {named[1]}, which is not "
                                              "set."]


def _misplaced(key: str, text: str) -> list[str]:
    """What is wrong with a text that names secret variables, in a setting that is not named as a secret."""
    if not any(part in _free() for part in key.split(".")[:-1]):
        return [f"key '{key}': {name} is a secret by its name, and this setting is written to files. Give it another "
                "variable; secrets go into free arguments alone." for name in named_in(text)]
    if "${" in REFERENCE.sub("", text):
        return [f"key '{key}': {name} is a secret by its name; needed ${{oc.env:{name}}}, without a default and without "
                "another interpolation beside it." for name in named_in(text)]
    return [f"key '{key}' wants the environment variable {name}, which is not set." for name in named_in(text)
            if name not in os.environ]


@cache
def _free() -> set[str]:
    """Last names of settings whose entries only a function knows."""
    return {key.rpartition(".")[2] for key, item in walk() if str(item.type).startswith("dict")}


def leaks(config: Any) -> list[str]:
    """Settings that hold the value of a variable which a secret names, one line each: it was interpolated there."""
    named = {m[1] for key, text in _texts(config) if is_secret(key) and (m := REFERENCE.fullmatch(text))}
    named |= {name for _, text in _texts(config) for name in named_in(text)}
    values = {name: os.environ[name] for name in named if len(os.environ.get(name, "")) >= SHORTEST}
    return [f"{key}: here stands the value of {name}, which is a secret, and a configuration is written to files. "
            "Leave it to the setting that is named as one."
            for key, text in _texts(config) for name, value in values.items() if value in text]


def _texts(value: Any, key: str = ""):
    """(dotted key, text) of every text in a nest."""
    if isinstance(value, str):
        yield key, value
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in pairs:
        yield from _texts(part, f"{key}.{name}" if key else str(name))


def mask(value: Any) -> Any:
    """A copy with every value whose key names a secret shown as ***."""
    if isinstance(value, dict):
        return {k: "***" if is_secret(str(k)) and v else mask(v) for k, v in value.items()}
    return [mask(v) for v in value] if isinstance(value, list) else value


def reveal(value: Any, key: str = "") -> Any:
    """A copy with every `${oc.env:VARIABLE}` of a secret replaced by what the environment says.

    For the memory of a stage's process only. Raises ConfigError for a variable that is not set.
    """
    if isinstance(value, dict):
        return {k: reveal(v, f"{key}.{k}" if key else str(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [reveal(v, key) for v in value]
    if not isinstance(value, str):
        return value
    if (named := REFERENCE.fullmatch(value)) and is_secret(key):
        return _value(named[1], key)
    return REFERENCE.sub(lambda m: _value(m[1], key) if SECRET_VARIABLE.search(m[1]) else m[0], value)


def _value(variable: str, key: str) -> str:
    if variable not in os.environ:
        raise ConfigError(f"'{key}' wants the environment variable {variable}, which is not set here.")
    return os.environ[variable]
