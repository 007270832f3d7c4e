"""The tables of other programs' keys and sentences, bridges/tables/*.yaml: read once, and only where one is asked for.

They are files of the importer; settings read that of the Trinity-RFT guide (settings/guide.py) for a key that is none
of ours. In a pattern `a.{b,c}` stands for a.b and a.c. A table of keys has these sections:

`renamed`: pattern there -> pattern here, or [it, {value there: value here}, note]; `a.*: b.*` renames all below a.
`left_out`: groups of keys that do something there and nothing here, with the reason. `without_effect`: the same for
keys that need no equivalent here. `disabled`: values that disable a key of a group there too; `switch`: a key below it
with such a value; `equals`: a key whose value it may repeat; `loses`: the part of the task that a recipe lacks without
the key; `to` and `note`: the setting by which an import writes it otherwise, and how.

The guide's has further ones. `works`: patterns of the same name and meaning; `noted`: groups of these with a note.
`always`: groups with the values that hold. `meant`: pattern -> {value there: value here}. `values`: groups of keys with
refused `values`, or with all but those in `only` refused.
"""

import re
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from typing import Any

import yaml

from ouroboros.pipeline.store.files import PACKAGE

NUMBER, OWN_NAME = "any number", "the key above it"  # among the values of Always: no value, but what it may be


@dataclass(frozen=True)
class Works:
    """Same name and meaning. note: restrictions on the value."""

    note: str = ""


@dataclass(frozen=True)
class Renamed:
    """Another name here. values: the original's value -> ours; empty: unchanged. note: further differences."""

    to: str
    values: dict[Any, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Always:
    """Nothing to choose here: accepted with a value that holds, and without effect. values: these. why: what holds."""

    values: tuple
    why: str

    def holds(self, key: str, value: Any) -> bool:
        """Returns whether a value holds for a dotted key; NUMBER among the values is any that is not negative, OWN_NAME
        the name above the key."""
        if NUMBER in self.values and type(value) in (int, float) and value >= 0:
            return True
        if OWN_NAME in self.values and value == key.split(".")[-2]:
            return True
        return any(value == one and isinstance(value, bool) == isinstance(one, bool)
                   for one in self.values if one not in (NUMBER, OWN_NAME))


@dataclass(frozen=True)
class Refused:
    """Has no meaning here. why: one sentence with the alternative. idle: values that disable it.

    loses: the part of the task itself that an import lacks without it, one of bridges/translation.py's TASK. equals: a
    key of the source that has a meaning here; with its value this one says nothing more.
    """

    why: str
    idle: tuple = ()
    loses: str = ""
    equals: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Translated(Refused):
    """Written in another way here, which an import does where it can. to: the setting; note: how. why: where it
    cannot."""

    to: str = ""
    note: str = ""


Fate = Works | Renamed | Always | Refused | Translated


@cache
def table(name: str) -> dict[str, Any]:
    """Returns the content of bridges/tables/<name>.yaml."""
    path = PACKAGE / "commands" / "bridges" / "tables" / f"{name}.yaml"
    return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def expanded(patterns: str) -> list[str]:
    """Expands blank-separated key patterns."""
    keys = []
    for pattern in patterns.split():
        found = re.search(r"\{([^{}]*)\}", pattern)
        keys += [pattern] if not found else [key for part in found[1].split(",") for key in expanded(
            pattern[:found.start()] + part + pattern[found.end():])]
    return keys


def without_counterpart(read: dict[str, Any]) -> dict[str, Refused]:
    """Maps the keys of a table that are not meant here to the reason."""
    made = {}
    for group in (*read.get("left_out", ()), *read.get("without_effect", ())):
        idle = (*group.get("disabled", ()), *group.get("switch", {}).items())
        more = {name: group[name] for name in ("loses", "equals", "to", "note") if name in group}
        made |= dict.fromkeys(expanded(group["keys"]), (Translated if "to" in group else Refused)(
            group["why"], idle, **more))
    return made


def renamed(read: dict[str, Any]) -> dict[str, Renamed]:
    """Maps the keys of a table that have another name here to it."""
    made = {}
    for pattern, target in read.get("renamed", {}).items():
        to, *more = [target] if isinstance(target, str) else target
        made |= {key: Renamed(one, *more) for key, one in zip(expanded(pattern), cycle(expanded(to)), strict=False)}
    return made
