"""Secrets: API keys, passwords, tokens. They stay in the environment and reach no file, log or monitor.

A setting whose name marks it as secret holds only the text `${oc.env:VARIABLE}`; if the name of the *variable* does,
the text may be in any free argument, alone or within a text (`Bearer ${oc.env:API_KEY}`). Files store and identities
hash that text; only a stage's own process replaces it, in memory, with the variable's value.
"""

import os
import re
from functools import cache
from typing import Any

from pipeline.settings.config import walk
from pipeline.store.errors import TAKEN_AS_SECRETS, UNSAID, ConfigError, Problem, shown
from pipeline.store.secret_names import carried, hidden, names_secret

# as OmegaConf parses it, with blanks and quotes; other forms (such as a composed name) are found when they are
# resolved (pipeline/compose/interpolation.py)
VARIABLE = r"\$\{\s*oc\.env\s*:\s*(?P<quote>['\"]?)(?P<variable>\w+)(?P=quote)\s*"
REFERENCE = re.compile(rf"{VARIABLE}(?P<empty>,\s*(?:''|\"\"|null)?\s*)?\}}")  # with an empty default, or without
ALONE = re.compile(rf"((?:bearer|basic|token)\s+)?{REFERENCE.pattern}", re.I)  # and, of a header, the scheme before it
WITH_DEFAULT = re.compile(rf"{VARIABLE}(,[^}}]*)?\}}")
ENTRY = re.compile(r"(?<![$\w.-])([\w.-]+)\s*:\s*(?!//)"  # of a mapping in an override
                   r"""('[^']*'|"[^"]*"|\{[^{}]*\}|\[[^]]*\]|[^,{}\[\]]+)""")
SHORTEST = 4  # characters: a shorter value is found by chance
LONG_ENOUGH = 8  # if nothing else refers to the variable
OF_THE_SHELL = "A shell replaces $NAME between double quotes, not between single ones."


def is_secret(key: str) -> bool:
    """Returns whether a part of a dotted key names a secret: everything below it is secret too."""
    return any(names_secret(part) for part in key.split("."))


def named_in(text: str) -> list[str]:
    """Returns the variables in a text's `${oc.env:VARIABLE}` whose names mark them as secrets."""
    return [m["variable"] for m in WITH_DEFAULT.finditer(text) if names_secret(m["variable"], is_variable=True)]


def problems_of(value: Any, key: str = "") -> list[Problem]:
    """Lists literal secrets and unset variables."""
    if isinstance(value, dict):
        return [p for k, v in value.items() for p in problems_of(v, f"{key}.{k}" if key else str(k))]
    if isinstance(value, list):
        return [p for i, v in enumerate(value) for p in problems_of(v, f"{key}.{i}")]
    if why := written_out(key, value):
        return [Problem(key, why)]
    if not (isinstance(value, str) and value):
        return []
    if not is_secret(key):
        return _misplaced(key, value) if named_in(value) else []
    named = REFERENCE.search(value)
    variable = named["variable"]
    return [Problem(key, f"the environment variable {variable} is not set.", f"Set it, or allow it to be empty: "
                    f"${{oc.env:{variable},}}.")] if not (named["empty"] or variable in os.environ) else []


def written_out(key: str, value: Any) -> str | None:
    """Returns why a value must not be in a file: it is a literal secret, by its key or by its form."""
    if isinstance(value, str) and (what := carried(REFERENCE.sub("", value))):
        return (f"{what}, which does not go into a file. Put it into the environment, where a library reads it itself "
                "(MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD for MLflow's address) or a free argument names it "
                "(${oc.env:MY_API_KEY}).")
    if value in (None, "") or isinstance(value, (bool, dict, list)) or not is_secret(key):
        return None
    name = key.rsplit(".", 1)[-1]
    if isinstance(value, str) and ALONE.fullmatch(value):
        return None
    if isinstance(value, str) and (given := WITH_DEFAULT.fullmatch(value)):
        variable = given["variable"]
        return (f"a default of {variable} would be a secret that is written out, and a secret does not go into a file; "
                f"needed an empty one, {name}: ${{oc.env:{variable},}}, or none.")
    return ("a secret does not go into a file, as a configuration is. Put it into the environment and write "
            f"{name}: ${{oc.env:VARIABLE}}.")


def kept_out(key: str, value: Any) -> str | None:
    """Returns why a value, nested ones too, must not be in a recipe: a literal or misplaced secret."""
    if isinstance(value, (dict, list)):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return next(filter(None, (kept_out(f"{key}.{name}", part) for name, part in parts)), None)
    if (why := written_out(key, value)) or not isinstance(value, str) or is_secret(key):
        return why
    return next((p for p in _misplaced(key, value) if "is not set" not in p), None)


def _misplaced(key: str, text: str) -> list[Problem]:
    """Returns the problem with a text that names secret variables in a non-secret setting."""
    names = named_in(text)
    if not any(part in _free() for part in key.split(".")[:-1]):
        return [Problem(key, f"{name} is a secret by its name, and this setting is written to files.", "Use another "
                        "variable; secrets go only into free arguments.") for name in names]
    if "${" in REFERENCE.sub("", text):  # an empty default is none of these
        return [Problem(key, f"{name} is a secret by its name; needed ${{oc.env:{name}}}, with no default and no other "
                        "interpolation.") for name in names]
    return [Problem(key, f"the environment variable {m['variable']} is not set.")
            for m in REFERENCE.finditer(text) if names_secret(m["variable"], is_variable=True)
            and not (m["empty"] or m["variable"] in os.environ)]


@cache
def _free() -> set[str]:
    """Returns the last names of settings whose entries only a function knows."""
    return {key.rpartition(".")[2] for key, item in walk() if str(item.annotation).startswith("dict")}


def taken_as_secrets(config: Any) -> set[str]:
    """Returns the variables used by secret settings, whatever their names."""
    return {m["variable"] for key, text in texts(config) if is_secret(key) and (m := REFERENCE.search(text))}


def misdirected(key: str, variable: str) -> Problem:
    """Returns the problem of a setting that received the value of a secret variable."""
    plainly = f", or name it plainly in a free argument: ${{oc.env:{variable}}}" if names_secret(variable, True) else ""
    return Problem(key, f"has the value of {variable}, which is a secret, and a configuration is written to files.",
                   f"Leave it to a setting whose name marks it as secret{plainly}.")


def leaks(config: Any) -> list[Problem]:
    """Lists settings that contain the literal value of a secret variable.

    The value of a variable that no setting names must occur as a whole word: an unrelated variable may contain the
    start of a path.
    """
    named = taken_as_secrets(config) | {name for _, text in texts(config) for name in named_in(text)}
    values = {name: value for name in named if len(value := os.environ.get(name, "")) >= SHORTEST}
    others = {name: re.compile(rf"(?<![\w./+-]){re.escape(value)}(?![\w./+-])") for name, value in os.environ.items()
              if name not in named and len(value) >= LONG_ENOUGH and names_secret(name, is_variable=True)}
    found = list(texts(config))
    return [*(misdirected(key, name) for key, text in found for name, value in values.items() if value in text),
            *(_from_shell(key, name) for key, text in found for name, form in others.items()
              if form.search(text) and not is_secret(key))]


def _from_shell(key: str, variable: str) -> Problem:
    """Returns the problem of a secret that a shell may have put into a setting."""
    problem = misdirected(key, variable)
    return problem.but(do=f"{problem.do} {OF_THE_SHELL}")


def texts(value: Any, key: str = ""):
    """Returns (dotted key, text) of every text in nested settings."""
    if isinstance(value, str):
        yield key, value
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in pairs:
        yield from texts(part, f"{key}.{name}" if key else str(name))


def mask(value: Any) -> Any:
    """Returns a copy with values of secret keys shown as ***, except the names of variables."""
    if isinstance(value, dict):
        return {k: "***" if is_secret(str(k)) and v and not is_name(v) else mask(v) for k, v in value.items()}
    return [mask(v) for v in value] if isinstance(value, list) else value


def is_name(value: Any) -> bool:
    """Returns whether a value is only a reference `${oc.env:VARIABLE}`, and not its value."""
    return isinstance(value, str) and ALONE.fullmatch(value) is not None


def without_values(problems: list[Problem], config: Any) -> list[Problem]:
    """Masks the values of secret settings in problems, since a rule may quote what it rejects."""
    values = sorted({text for key, text in texts(config)
                     if is_secret(key) and len(text) >= SHORTEST and not REFERENCE.search(text)}, key=len, reverse=True)

    def masked(text: str) -> str:
        for value in values:
            text = text.replace(value, "***")
        return text

    return [one if masked(str(one)) == one else one.but(
        key=masked(one.key), needed=masked(one.needed), do=masked(one.do),
        found=one.found if one.found is UNSAID else masked(shown(one.found))) for one in problems]


def typed(override: str) -> str:
    """Formats a command-line override for messages, without its secrets."""
    key, equals, value = override.partition("=")
    if equals and is_secret(key.lstrip("+~")):
        return override if is_name(value.strip("'\"")) else f"{key}=***"
    within = ENTRY.sub(lambda m: f"{m[1]}:***" if is_secret(m[1]) else m[0], value)  # {api_key: x, depth: 3}
    return key + equals + hidden(within)


def reveal(value: Any, key: str = "") -> Any:
    """Returns a copy with every secret's `${oc.env:VARIABLE}` replaced by its value.

    Only for the memory of a stage's process. Raises ConfigError for a variable that is not set.
    """
    if isinstance(value, dict):
        return {k: reveal(v, f"{key}.{k}" if key else str(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [reveal(v, key) for v in value]
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
