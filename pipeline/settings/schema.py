"""Validates nested dicts and lists with the models of pipeline/settings/config.py, and reports the problems.

All problems are found at once. Unreadable values have their default in the result, so that rules between settings can
be applied to the rest.
"""

import copy
import math
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ouroboros.pipeline.settings.algorithms import without_its_name
from ouroboros.pipeline.settings.arguments.base import declared, not_one_of, problem_of
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.explorer import why_absent
from ouroboros.pipeline.settings.guide import explain_absent, explain_value, meanings, workflows
from ouroboros.pipeline.settings.key_names import exists, nearest_key
from ouroboros.pipeline.settings.setting import Section, about, is_section, leaves, listed, plain
from ouroboros.pipeline.store.errors import Problem, wrong_type
from ouroboros.pipeline.store.foreign_text import escaped, is_encodable


def read(value: dict[str, Any], kind: type[Section], key: str = "",
         more: Iterable[str] = ()) -> tuple[Section, list[Problem]]:
    """Returns `value` as the section `kind`, and a problem for each unreadable value, which has its default then.

    key: the section's, dotted; empty for the root. more: names besides the section's own that may be meant by an
    unknown key.
    """
    remaining, problems = copy.deepcopy(value), []
    while True:  # once, and once more without the invalid parts
        try:
            made = kind.model_validate(remaining)
            break
        except ValidationError as error:
            found = _by_place(error, remaining)
            problems += [line for place, one in found.items() for line in _lines(kind, place, one, key, more)]
            for place in sorted(found, key=lambda p: [str(x).zfill(9) for x in p], reverse=True):
                _drop(remaining, place)
    problems += [problem for place, one in leaves(made, key) if not place.startswith("stages.")
                 for problem in (*_not_finite(place, one), *_not_unicode(place, one))]
    return made, problems


def _by_place(error: ValidationError, given: dict) -> dict[tuple, dict]:
    """Maps places in `given` to the first error there: pydantic appends union members' names to the place."""
    found: dict[tuple, dict] = {}
    for one in error.errors(include_url=False, include_context=True):
        place, node = [], given
        for part in one["loc"]:
            if (isinstance(node, dict) and part in node) or (isinstance(node, list) and isinstance(part, int)):
                place.append(part)
                node = node[part]
        found.setdefault(tuple(place), one)
    return {place: one for place, one in found.items()
            if not any(other[:len(place)] == place and other != place for other in found)}


def _drop(given: Any, place: tuple) -> None:
    for part in place[:-1]:
        given = given[part]
    del given[place[-1]]


def _lines(kind: type[Section], place: tuple, error: dict, above: str, more: Iterable[str]) -> list[Problem]:
    """Returns the messages for pydantic's errors at a place."""
    key, value = ".".join(filter(None, [above, *map(str, place)])), error["input"]
    if error["type"] == "extra_forbidden":
        return [_dotted(key, str(place[-1])) or unknown(key, more)]
    type_, field = declared(kind, place)
    if error["type"] == "name":
        names = about(field).names
        meant = {**meanings(key), **workflows()}
        return [not_one_of(key, name, names, ", or package.module:function of your own",
                           f"Write {meant[name]}." if name in meant else "")
                for name in map(str, value if isinstance(value, list) else [value])
                if ":" not in name and name not in names]
    if error["type"] == "choice":
        choices, why = about(field).choices, explain_value(key, value)
        return [Problem(key, f"needed one of {listed(choices)}: {why}", found=value) if why else not_one_of(
            key, value, choices, advice=without_its_name(value) if key.endswith("algorithm_type") else "")]
    return [_no_section(value, key) if is_section(type_) else problem_of(error, key, type_, field)]


def _no_section(value: Any, key: str) -> Problem:
    hint = (f"A file of conf/{key}/ is chosen for the whole run, on the command line ({key}={value}); a recipe has the "
            "keys themselves.") if isinstance(value, str) and "." not in key else ""
    return wrong_type(value, "a mapping of settings", key).but(do=hint)


def _not_finite(key: str, value: Any) -> list[Problem]:
    """Returns the problem of nan, and of infinity except in an algorithm's arguments, where it may mean no bound."""
    if not isinstance(value, float) or math.isfinite(value) or (math.isinf(value) and "algorithm." in key):
        return []
    return [Problem(key, "needed a finite number.", found=value)]


def _not_unicode(key: str, value: Any) -> list[Problem]:
    """Returns the problem of a text, or a name of a free argument, that no file and no tokenizer can hold."""
    if is_encodable(key) and not (isinstance(value, str) and not is_encodable(value)):
        return []
    return [Problem(escaped(key), "needed Unicode, found a text with half of a surrogate pair, or bytes of a variable "
                    "that are no UTF-8.")]


def fitting(content: dict, base: dict, key: str = "") -> tuple[dict, list[Problem]]:
    """Returns `content` without what cannot be merged over `base`, a list over a mapping or the reverse; and why.

    content: a file's, interpolations unresolved. base: nested defaults.
    """
    made, problems = {}, []
    for name, value in content.items():
        full, there = f"{key}.{name}" if key else str(name), base.get(name)
        if isinstance(there, dict) and isinstance(value, list):
            problems.append(wrong_type(value, "a mapping", full))
        elif isinstance(there, list) and isinstance(value, dict):
            problems.append(wrong_type(value, "a list", full))
        else:
            both = isinstance(there, dict) and isinstance(value, dict)
            made[name], below = fitting(value, there, full) if both else (value, [])
            problems += below
    return made, problems


def unknown(key: str, more: Iterable[str] = ()) -> Problem:
    """Returns the problem of an unknown key: the equivalent of the Trinity-RFT key, why there is none, or the nearest.

    more: names that are not settings but may be meant.
    """
    if equivalent := explain_absent(key):
        return Problem(key, "unknown key.", equivalent)
    if why := why_absent(key):
        return Problem(key, f"unknown key: {why}", "Leave it out.")
    return Problem(key, "unknown key.", nearest_key(key, more))


def _dotted(key: str, name: str) -> Problem | None:
    """Returns the problem of a dotted key in place of nesting, as on the command line. name: the key as written."""
    if "." not in name or not exists(key):
        return None
    *sections, last = name.split(".")
    nested = "".join(f"{section}: {{" for section in sections) + f"{last}: ...{'}' * len(sections)}"
    return Problem(key, "the key is written with dots, which a file does not take apart.", f"Write {nested}.")


def setting_problems(key: str, value: Any) -> list[Problem]:
    """Lists problems with the value of one setting, one line each. key: dotted, `*` for an element of a list."""
    for part, above in reversed(list(zip(key.split("."), ["", *key.split(".")], strict=False))):
        value = [value] if part == "*" and above != "auxiliary_buffers" else {part: value}
    return read(value, Config)[1]


def default(field: FieldInfo) -> Any:
    """Returns the default of a setting, sections as dicts."""
    return plain(field.get_default(call_default_factory=True))


def defaults() -> dict[str, Any]:
    """Returns every setting at its default, as a file that is merged with others."""
    return plain(Config())
