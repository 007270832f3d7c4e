"""Reads a nest of dicts and lists by the schema of pipeline/settings/config.py: unknown keys, wrong types, bounds.

Everything here collects: a problem is one line, and all of them are found before anybody is told. What cannot be read
is left out of the result, so that rules between settings can be tried on the rest.
"""

import dataclasses
import math
from collections.abc import Iterable
from types import UnionType
from typing import Any, get_args, get_origin

from pipeline.settings.config import Config
from pipeline.settings.environment_values import FromEnvironment, settled
from pipeline.settings.guide import explain_absent, explain_value
from pipeline.settings.key_names import exists, nearest_key
from pipeline.settings.setting import choices_of
from pipeline.store.errors import nearest

UNREADABLE = object()
LARGEST = 2**63  # what 64 bits hold: torch, Parquet and DuckDB count with no more
WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list",
         dict: "a mapping"}


def read(value: Any, kind: Any, key: str, problems: list[str], partial: bool = False, more: Iterable[str] = ()) -> Any:
    """`value` as `kind` declares it; UNREADABLE, with a line in `problems`, when it has another type.

    kind: a dataclass of settings/config.py or the type of a setting. partial: keys may be missing (a stage's entry);
    otherwise a missing one gets its default. more: names beside those of the dataclass that may be meant.
    """
    if isinstance(value, FromEnvironment):
        value = _of_environment(value, kind)
    if dataclasses.is_dataclass(kind):
        return _section(value, kind, key, problems, partial, more)
    if isinstance(kind, UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        return _any_of(value, [k for k in get_args(kind) if k is not type(None)], key, problems, partial)
    if get_origin(kind) is list:
        return _list(value, *get_args(kind), key, problems)
    if get_origin(kind) is dict:
        return _mapping(value, get_args(kind)[1], key, problems)
    return value if kind is Any else _scalar(value, kind, key, problems)


def _any_of(value: Any, kinds: list[Any], key: str, problems: list[str], partial: bool) -> Any:
    """`value` as the first of these types that takes it, its own type before others."""
    own = [kind for kind in kinds if (get_origin(kind) or kind) is type(value)] or kinds
    if len(own) == 1:
        return read(value, *own, key, problems, partial)
    for kind in own:
        refused: list[str] = []
        found = read(value, kind, key, refused, partial)
        if not refused:
            return found
    return wrong(value, " or ".join(WORDS[get_origin(kind) or kind] for kind in kinds), key, problems)


def _of_environment(text: FromEnvironment, kind: Any) -> Any:
    """A text of the environment as the type that a setting wants; one that takes texts takes it as it is."""
    wanted = {get_origin(k) or k for k in (get_args(kind) if isinstance(kind, UnionType) else (kind,))}
    value = text.as_value()
    return str(text) if str in wanted and type(value) not in wanted - {int, float} else value


def fitting(content: dict, base: dict, key: str, problems: list[str]) -> dict:
    """`content` without what cannot be laid over `base`, a list where it has a mapping or the other way round.

    content: a file's, interpolations unresolved. base: a nest of defaults.
    """
    made = {}
    for name, value in content.items():
        full, there = f"{key}.{name}" if key else str(name), base.get(name)
        if isinstance(there, dict) and isinstance(value, list):
            wrong(value, "a mapping", full, problems)
        elif isinstance(there, list) and isinstance(value, dict):
            wrong(value, "a list", full, problems)
        else:
            both = isinstance(there, dict) and isinstance(value, dict)
            made[name] = fitting(value, there, full, problems) if both else value
    return made


def _section(value: Any, kind: type, key: str, problems: list[str], partial: bool, more: Iterable[str] = ()) -> Any:
    if not isinstance(value, dict):
        found = wrong(value, "a mapping of settings", key, problems)
        if isinstance(value, str) and "." not in key:
            problems[-1] += (f" A file of conf/{key}/ is chosen for the whole run, on the command line ({key}={value});"
                             " here stand the keys themselves.")
        return found
    fields = {item.name: item for item in dataclasses.fields(kind)}
    made = {}
    for name, given in value.items():
        full = f"{key}.{name}" if key else str(name)
        if name not in fields:
            problems.append(_dotted(full, str(name)) or unknown(full, more))
            continue
        found = _in_its_case(read(given, fields[name].type, full, problems, partial), fields[name].metadata)
        outside = [] if found is UNREADABLE else _outside(full, found, fields[name].metadata)
        problems += outside
        if found is not UNREADABLE and not (outside and isinstance(found, (int, float))):
            made[name] = found  # a number outside its bounds is left out: rules count with it
    if not partial:
        made |= {name: default(item) for name, item in fields.items() if name not in made}
    return made


def _list(value: Any, element: Any, key: str, problems: list[str]) -> Any:
    if not isinstance(value, list):
        return wrong(value, "a list", key, problems)
    found = (read(v, element, f"{key}.{i}", problems) for i, v in enumerate(value))
    return [v for v in found if v is not UNREADABLE]


def _mapping(value: Any, element: Any, key: str, problems: list[str]) -> Any:
    if not isinstance(value, dict):
        return wrong(value, "a mapping", key, problems)
    if element is Any:  # a stage's settings are read once more, by their own types (pipeline/compose/stage_settings.py)
        made = value if key.startswith("stages.") else settled(value)
        problems += [] if key.startswith("stages.") else _not_finite(made, key)
        return made
    found = {str(name): read(v, element, f"{key}.{name}", problems) for name, v in value.items()}
    return {name: v for name, v in found.items() if v is not UNREADABLE}


def _not_finite(value: Any, key: str) -> list[str]:
    """The lines for nan, and for an infinity except among an algorithm's arguments, where it may mean no bound."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return [line for name, one in pairs for line in _not_finite(one, f"{key}.{name}")]
    if not isinstance(value, float) or math.isfinite(value) or (math.isinf(value) and "algorithm." in key):
        return []
    return [f"{key}={value}: needed a finite number."]


def _scalar(value: Any, kind: type, key: str, problems: list[str]) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is bool and isinstance(value, bool):
        return value
    whole = number and (isinstance(value, int) or (kind is int and math.isfinite(value)))
    if whole and abs(value) >= LARGEST:
        problems.append(f"key '{key}': needed a number below 2^63, found one of "
                        f"{int(math.log10(abs(value))) + 1} digits.")
        return UNREADABLE
    if kind is int and number and float(value).is_integer():  # 1e3 is a whole number too
        return int(value)
    if kind is float and number:
        return float(value)
    if kind is str and isinstance(value, (str, int, float)):
        return str(value)
    return wrong(value, WORDS[kind], key, problems)


def wrong(value: Any, needed: str, key: str, problems: list[str]) -> Any:
    """UNREADABLE, with a line in `problems` that says what was needed."""
    kinds = {type(None): "null", dict: "a mapping", list: "a list", bool: str(value).lower(),
             str: f"the text {value!r}"}
    problems.append(f"key '{key}': needed {needed}, found {kinds.get(type(value), value)}.")
    return UNREADABLE


def unknown(key: str, more: Iterable[str] = ()) -> str:
    """The line for a key that does not exist: what the Trinity-RFT key of that name is here, or the nearest of ours.

    more: names that are no settings and may be meant.
    """
    elsewhere = explain_absent(key)
    if elsewhere:
        return f"no key '{key}': {elsewhere}"
    return f"unknown key '{key}'.{nearest_key(key, more)}"


def _dotted(key: str, name: str) -> str | None:
    """The line for a setting whose place is written with dots, as on the command line. name: the key as it stands."""
    if "." not in name or not exists(key):
        return None
    *sections, last = name.split(".")
    nested = "".join(f"{section}: {{" for section in sections) + f"{last}: ...{'}' * len(sections)}"
    return f"key '{key}' is written with dots, which a file does not take apart; write {nested}."


def default(item: dataclasses.Field) -> Any:
    """The default of a field, sections as dicts."""
    made = item.default if item.default is not dataclasses.MISSING else item.default_factory()
    return dataclasses.asdict(made) if dataclasses.is_dataclass(made) else made


def defaults() -> dict[str, Any]:
    """Every setting at its default."""
    return dataclasses.asdict(Config())


def _in_its_case(value: Any, bounds: Any) -> Any:
    """The choice that a text is but for its capitals, `DEBUG` for `debug`, or another spelling of; any other value as
    it is."""
    if not bounds or not isinstance(value, str):
        return value
    text, choices = bounds["meant"](value) if bounds["meant"] else value, choices_of(bounds) or ()
    return text if text in choices else next((one for one in choices if str(one).lower() == value.lower()), value)


def _outside(key: str, value: Any, bounds: Any) -> list[str]:
    """The line for a value outside its bounds or choices; a section has none."""
    if value is None or not bounds:
        return []
    if isinstance(value, float) and not math.isfinite(value):
        return [f"{key}={value}: needed a finite number."]
    if bounds["names"]:
        names = value if isinstance(value, list) else [value]
        return [f"{key}={name}: needed one of {', '.join(bounds['names'])}, or package.module:function of your own."
                + nearest(name, bounds["names"]) for name in names if ":" not in name and name not in bounds["names"]]
    choices = choices_of(bounds)
    if choices and value not in choices:
        why = explain_value(key, value)
        return [f"{key}={value}: needed one of {', '.join(map(str, choices))}"
                + (f": {why}" if why else f".{nearest(str(value), map(str, choices))}")]
    tests = (("ge", lambda b: value >= b, "at least"), ("gt", lambda b: value > b, "greater than"),
             ("le", lambda b: value <= b, "at most"))
    return [f"{key}={value}: needed {words} {bounds[name]}." for name, holds, words in tests
            if bounds[name] is not None and not holds(bounds[name])]
