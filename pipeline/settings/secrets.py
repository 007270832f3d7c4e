"""Secrets: API keys, passwords, tokens. They stay in the environment and reach no file, log or monitor.

A setting whose name marks it as secret holds only the text `${oc.env:VARIABLE}`; if the name of the *variable* does,
the text may be in any free argument, alone or within a text (`Bearer ${oc.env:API_KEY}`). Files store and identities
hash that text; only a stage's own process replaces it, in memory, with the variable's value.
"""

import os
import re
from functools import cache
from typing import Any

from ouroboros.pipeline.settings.config import walk
from ouroboros.pipeline.settings.setting import leaves, plain
from ouroboros.pipeline.store.errors import ConfigError, Problem
from ouroboros.pipeline.store.secret_names import TAKEN_AS_SECRETS, names_secret, secret_variables

# as OmegaConf parses it, with blanks and quotes, and an empty default or none; other forms, such as a composed name,
# stay references when they are resolved (pipeline/compose/interpolation.py)
VARIABLE = r"\$\{\s*oc\.env\s*:\s*(?P<quote>['\"]?)(?P<variable>\w+)(?P=quote)\s*"
REFERENCE = re.compile(rf"{VARIABLE}(?P<empty>,\s*(?:''|\"\"|null)?\s*)?\}}")
WITH_DEFAULT = re.compile(rf"{VARIABLE}(,[^}}]*)?\}}")
ENTRY = re.compile(  # of a mapping in an override
    r"""(?<![$\w.-])([\w.-]+)\s*:\s*(?!//)('[^']*'|"[^"]*"|\{[^{}]*\}|\[[^]]*\]|[^,{}\[\]]+)""")
NO_KEY = ("none", "None", "EMPTY")  # what servers that need no key are given in its place
SHORTEST = 4  # characters: a shorter value is found by chance
LONG_ENOUGH = 8  # of the value of a variable that no setting names


def is_secret(key: str) -> bool:
    """Returns whether a part of a dotted key names a secret: everything below it is secret too."""
    return any(names_secret(part) for part in key.split("."))


def is_name(value: Any) -> bool:
    """Returns whether a value is only a reference `${oc.env:VARIABLE}`, and not its value."""
    return isinstance(value, str) and REFERENCE.fullmatch(value) is not None


def named_in(text: str) -> list[str]:
    """Returns the variables in a text's `${oc.env:VARIABLE}` whose names mark them as secrets."""
    return [m["variable"] for m in WITH_DEFAULT.finditer(text) if names_secret(m["variable"], is_variable=True)]


def problems_of(value: Any, key: str = "") -> list[Problem]:
    """Lists literal and misplaced secrets and unset variables."""
    return [problem for place, one in leaves(value, key) for problem in _problems(place, one)]


def _problems(key: str, value: Any) -> list[Problem]:
    if why := _kept_out(key, value):
        return [Problem(key, why)]
    secret = is_secret(key)
    return [Problem(key, f"the environment variable {m['variable']} is not set.",
                    f"Set it, or allow it to be empty: ${{oc.env:{m['variable']},}}.")
            for m in REFERENCE.finditer(value if isinstance(value, str) else "")
            if (secret or names_secret(m["variable"], True)) and not (m["empty"] or m["variable"] in os.environ)]


def kept_out(key: str, value: Any) -> str | None:
    """Returns why a value, nested ones too, must not be in a file: it is a literal or a misplaced secret."""
    return next(filter(None, (_kept_out(place, one) for place, one in leaves(value, key))), None)


def _kept_out(key: str, value: Any) -> str | None:
    if not is_secret(key):
        return _misplaced(key, value) if isinstance(value, str) else None
    if value in (None, "", *NO_KEY) or isinstance(value, bool) or is_name(value):
        return None
    name = key.rsplit(".", 1)[-1]
    if isinstance(value, str) and (given := WITH_DEFAULT.fullmatch(value)):
        return (f"a default of {given['variable']} is a secret, which does not go into a file; needed an empty one, "
                f"{name}: ${{oc.env:{given['variable']},}}, or none.")
    return ("a secret does not go into a file, as a configuration is. Put it into the environment and write "
            f"{name}: ${{oc.env:VARIABLE}}.")


def _misplaced(key: str, text: str) -> str | None:
    """Returns the problem with a text that names secret variables in a setting that cannot keep the reference."""
    names = named_in(text)
    if names and not any(part in _free() for part in key.split(".")[:-1]):
        return (f"{names[0]} is a secret by its name, and this setting is written to files. Use another variable; "
                "secrets go only into free arguments.")
    if names and "${" in REFERENCE.sub("", text):  # an empty default is none of these
        return (f"{names[0]} is a secret by its name; needed ${{oc.env:{names[0]}}}, with no default and no other "
                "interpolation.")
    return None


@cache
def _free() -> set[str]:
    """Returns the last names of settings whose entries only a function knows."""
    return {key.rpartition(".")[2] for key, item in walk() if str(item.annotation).startswith("dict")}


def taken_as_secrets(config: Any) -> set[str]:
    """Returns the variables used by secret settings, whatever their names."""
    return {m["variable"] for key, text in texts(config) if is_secret(key) and (m := REFERENCE.search(text))}


def reference(variable: str, *default: Any) -> str:
    """Returns the `${oc.env:VARIABLE}` that stands for a secret's value."""
    given = "".join(f",{'' if one is None else one}" for one in default)
    return f"${{oc.env:{variable}{given}}}"


def misdirected(key: str, variable: str) -> Problem:
    """Returns the problem of a setting that names or received the value of a secret variable."""
    return Problem(key, f"has the value of {variable}, which is a secret, and a configuration is written to files.",
                   f"Name it in a free argument, ${{oc.env:{variable}}}; a shell expands $NAME between double quotes, "
                   "not between single ones.")


def leaks(config: Any) -> list[Problem]:
    """Lists settings that contain the value of a secret variable, such as one that the shell expanded, or that are no
    secrets and name a variable which a secret setting takes.

    The value of a variable that no setting names must occur as a whole word: an unrelated variable may contain the
    start of a path.
    """
    found = list(texts(config))
    named = taken_as_secrets(config) | {name for _, text in found for name in named_in(text)}
    forms = {name: re.escape(value) for name in named if len(value := os.environ.get(name, "")) >= SHORTEST}
    forms |= {name: rf"(?<![\w./+-]){re.escape(value)}(?![\w./+-])" for name, value in secret_variables().items()
              if name not in named and len(value) >= LONG_ENOUGH}
    return [*(misdirected(key, m["variable"]) for key, text in found if not is_secret(key)
              for m in WITH_DEFAULT.finditer(text) if not names_secret(m["variable"], is_variable=True)),
            *(misdirected(key, name) for name, form in forms.items() for key, text in found
              if re.search(form, text) and (name in named or not is_secret(key)))]


def texts(value: Any, key: str = ""):
    """Returns (dotted key, text) of every text in nested settings."""
    return ((place, one) for place, one in leaves(value, key) if isinstance(one, str))


def mask(value: Any) -> Any:
    """Returns a copy with values of secret keys shown as ***, except the names of variables."""
    if isinstance(value, dict):
        return {k: "***" if is_secret(str(k)) and v and not is_name(v) else mask(v) for k, v in value.items()}
    return [mask(v) for v in value] if isinstance(value, list) else value


def without_values(problems: list[Problem], config: Any) -> list[Problem]:
    """Masks the values of secret settings in problems, since a rule may quote what it rejects."""
    values = sorted({text for key, text in texts(config)
                     if is_secret(key) and len(text) >= SHORTEST and not REFERENCE.search(text)}, key=len, reverse=True)

    def masked(text: str) -> str:
        for value in values:
            text = text.replace(value, "***")
        return text

    return [problem.masked(masked) for problem in problems]


def typed(override: str) -> str:
    """Formats a command-line override for messages, without its secrets."""
    key, equals, value = override.partition("=")
    if equals and is_secret(key.lstrip("+~")):
        return override if is_name(value.strip("'\"")) else f"{key}=***"
    return key + equals + ENTRY.sub(lambda m: f"{m[1]}:***" if is_secret(m[1]) else m[0], value)


def reveal(value: Any) -> Any:
    """Returns a copy with every secret's `${oc.env:VARIABLE}` replaced by its value.

    Only for the memory of a stage's process. Raises ConfigError for a variable that is not set.
    """
    return plain(value, _revealed)


def _revealed(key: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    secret = is_secret(key)
    return REFERENCE.sub(
        lambda m: _value(m, key) if secret or names_secret(m["variable"], is_variable=True) else m[0], value)


def _value(reference: re.Match, key: str) -> str:
    """Returns the value of a variable; empty where it is not set and its default is empty."""
    variable = reference["variable"]
    if variable not in os.environ and not reference["empty"]:
        raise ConfigError(f"'{key}' wants the environment variable {variable}, which is not set here.")
    TAKEN_AS_SECRETS.add(variable)
    return os.environ.get(variable, "")
