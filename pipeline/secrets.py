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
from pipeline.secret_values import carried

SECRETS = re.compile(r"(^|_)(secrets?|pass(word|wd|phrase)|pwd|credentials?|authorization|cookies?)(_|$)"
                     r"|(^|_)(api|secret|access|private|auth|openai|signing|encryption|ssh|account)_?keys?$"
                     r"|(^|_)(access|auth|api|bearer|csrf|docker|gh|git_?hub|git_?lab|hf|hub|hugging_?face|npm|private|"
                     r"pypi|refresh|registry|security|session|slack|wandb)_?tokens?$|^tokens?$", re.I)
VARIABLES = re.compile(r"[A-Z][A-Z0-9]*_(?:[A-Z0-9]+_)*(KEYS?|TOKENS?|PAT)")  # as variables are written
HARMLESS = re.compile(r"(^|_)(BOS|EOS|MAX|MIN|NUM|PAD|PROMPT|RESPONSE|STOP|UNK)_(KEYS?|TOKENS?)$")
REFERENCE = re.compile(r"\$\{oc\.env:\s*(\w+)\s*(,\s*(?:''|\"\"|null)?\s*)?\}")  # with an empty default, or without
ALONE = re.compile(rf"((?:bearer|basic|token)\s+)?{REFERENCE.pattern}", re.I)  # and, of a header, the scheme before it
WITH_DEFAULT = re.compile(r"\$\{oc\.env:\s*(\w+)\s*(,[^}]*)?\}")
SHORTEST = 4  # characters: a shorter value is found by chance


def is_secret(key: str) -> bool:
    """Whether a part of a dotted key names a secret: what stands below one is secret too."""
    return any(_names_one(part) for part in key.split("."))


def _names_one(part: str) -> bool:
    """Whether `api-key`, `apiKey` or `API_KEY` names a secret."""
    if VARIABLES.fullmatch(part):
        return not HARMLESS.search(part)
    return bool(SECRETS.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", part).replace("-", "_")))


def named_in(text: str) -> list[str]:
    """The variables in `${oc.env:VARIABLE}` of a text whose names say that they are secrets."""
    return [m[1] for m in WITH_DEFAULT.finditer(text) if SECRET_VARIABLE.search(m[1])]


def problems_of(value: Any, key: str = "") -> list[str]:
    """Secrets that are written out, and variables that are not set, one line each."""
    if isinstance(value, dict):
        return [p for k, v in value.items() for p in problems_of(v, f"{key}.{k}" if key else str(k))]
    if isinstance(value, list):
        return [p for i, v in enumerate(value) for p in problems_of(v, f"{key}.{i}")]
    if why := written_out(key, value):
        return [f"{key}: {why}"]
    if not (isinstance(value, str) and value):
        return []
    if not is_secret(key):
        return _misplaced(key, value) if named_in(value) else []
    named = REFERENCE.search(value)
    return [f"key '{key}' wants the environment variable {named[1]}, which is not set. Set it, or let it be empty: "
            f"${{oc.env:{named[1]},}}."] if not (named[2] or named[1] in os.environ) else []


def written_out(key: str, value: Any) -> str | None:
    """Why one value does not go into a file: it is a secret that is written out, by its key or by its form."""
    if isinstance(value, str) and (what := carried(REFERENCE.sub("", value))):
        return (f"{what}, which does not go into a file. Leave it out, and give it by the environment "
                "(MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD for MLflow).")
    if value in (None, "") or isinstance(value, (bool, dict, list)) or not is_secret(key):
        return None
    name = key.rsplit(".", 1)[-1]
    if isinstance(value, str) and ALONE.fullmatch(value):
        return None
    if isinstance(value, str) and (given := WITH_DEFAULT.fullmatch(value)):
        return (f"a default of {given[1]} would be a secret that is written out, and a secret does not go into a file; "
                f"needed an empty one, {name}: ${{oc.env:{given[1]},}}, or none.")
    return ("a secret does not go into a file, as a configuration is. Put it into the environment and write "
            f"{name}: ${{oc.env:VARIABLE}}.")


def kept_out(key: str, value: Any) -> str | None:
    """Why a value, a nest too, does not go into a recipe: a secret that is written out or stands where none may."""
    if isinstance(value, (dict, list)):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return next(filter(None, (kept_out(f"{key}.{name}", part) for name, part in parts)), None)
    if (why := written_out(key, value)) or not isinstance(value, str) or is_secret(key):
        return why
    return next((p for p in _misplaced(key, value) if "which is not set" not in p), None)


def _misplaced(key: str, text: str) -> list[str]:
    """What is wrong with a text that names secret variables, in a setting that is not named as a secret."""
    names = named_in(text)
    if not any(part in _free() for part in key.split(".")[:-1]):
        return [f"key '{key}': {name} is a secret by its name, and this setting is written to files. Give it another "
                "variable; secrets go into free arguments alone." for name in names]
    if "${" in REFERENCE.sub("", text):  # an empty default is none of these
        return [f"key '{key}': {name} is a secret by its name; needed ${{oc.env:{name}}}, without a default that says "
                "something and without another interpolation beside it." for name in names]
    return [f"key '{key}' wants the environment variable {m[1]}, which is not set." for m in REFERENCE.finditer(text)
            if SECRET_VARIABLE.search(m[1]) and not (m[2] or m[1] in os.environ)]


@cache
def _free() -> set[str]:
    """Last names of settings whose entries only a function knows."""
    return {key.rpartition(".")[2] for key, item in walk() if str(item.type).startswith("dict")}


def leaks(config: Any) -> list[str]:
    """Settings that hold the value of a variable which a secret names, one line each: it was interpolated there."""
    named = {m[1] for key, text in _texts(config) if is_secret(key) and (m := REFERENCE.search(text))}
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
    secret = is_secret(key)
    return REFERENCE.sub(lambda m: _value(m, key) if secret or SECRET_VARIABLE.search(m[1]) else m[0], value)


def _value(reference: re.Match, key: str) -> str:
    """What the environment says of a variable; nothing where it is not set and its default is empty."""
    variable, default = reference.groups()
    if variable not in os.environ and not default:
        raise ConfigError(f"'{key}' wants the environment variable {variable}, which is not set here.")
    return os.environ.get(variable, "")
