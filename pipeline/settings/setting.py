"""Declares a setting: a pydantic field with default, meaning, bounds and choices."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, core_schema

from pipeline.settings.environment_values import FromEnvironment, settled
from pipeline.store.errors import Problem

LARGEST = 2**63  # 64 bits: the limit of torch, Parquet and DuckDB


class Section(BaseModel):
    """A section of settings. A text may be given as a number and a whole number as 1e3; nothing else is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _as_declared(cls, value: Any, info) -> Any:
        field = cls.model_fields[info.field_name]
        return about(field).choice(converted(value, field.annotation))

    def __getattr__(self, name: str) -> Any:
        if name in type(self).model_fields:
            raise Unreadable(name)
        return super().__getattr__(name)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def without(self, key: str) -> None:
        """Removes the value of a dotted key, as unreadable; of a list or a mapping as a whole."""
        name, _, below = key.partition(".")
        part = self.__dict__.get(name)
        if below and isinstance(part, Section):
            part.without(below)
        else:
            self.__dict__.pop(name, None)

    def broken_rules(self, above: str = "") -> Iterator[Problem]:
        """Yields the problems that the rules of this section, and of those below it, find. above: its dotted key.

        A rule that reads an unreadable value finds nothing: its problem would be a consequence of another one.
        """
        kinds = [kind for kind in reversed(type(self).__mro__) if issubclass(kind, Section)]
        for one in (member for kind in kinds for member in vars(kind).values()):
            if getattr(one, "is_rule", False):
                with contextlib.suppress(Unreadable):
                    yield from (problem.below(above) for problem in one(self))
        for name, value in self.__dict__.items():
            key = f"{above}.{name}" if above else name
            for below, part in ([(key, value)] if isinstance(value, Section) else _elements(key, value)):
                yield from part.broken_rules(below)


class Unreadable(AttributeError):
    """A setting has a value of the wrong type or out of its bounds."""


def rule(function: Callable[[Any], Iterator[Problem]]) -> Callable[[Any], Iterator[Problem]]:
    """Marks a method of a section that yields a problem wherever its settings contradict each other."""
    function.is_rule = True
    return function


def _elements(key: str, value: Any) -> Iterator[tuple[str, Section]]:
    """Yields (dotted key, section) of the sections in a list or mapping."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return ((f"{key}.{name}", one) for name, one in pairs if isinstance(one, Section))


@dataclass(frozen=True)
class About:
    """Properties of a setting besides type, default and bounds.

    how: whether it affects execution rather than results. choices: may depend on the current directory. names: choices
    in addition to a user's `package.module:function`. meant: from another spelling of a choice to the choice.
    """

    how: bool = False
    given: tuple | Callable[[], tuple] | None = None
    names: tuple[str, ...] | None = None
    meant: Callable[[str], str] | None = None

    @property
    def choices(self) -> tuple | None:
        return self.given() if callable(self.given) else self.given

    def choice(self, value: Any) -> Any:
        """Returns the choice that a text matches apart from case, `DEBUG` for `debug`, or by another spelling."""
        if not isinstance(value, str) or not self.choices:
            return value
        text = self.meant(value) if self.meant else value
        return text if text in self.choices else next(
            (one for one in self.choices if str(one).lower() == value.lower()), value)

    def check(self, value: Any) -> Any:
        """Returns the value. Raises PydanticCustomError unless it is a choice or, with `names`, a function's path."""
        listed = value if isinstance(value, list) else [value]
        if value is not None and self.names and not all(":" in one or one in self.names for one in listed):
            raise PydanticCustomError("name", "unknown name")
        if value is not None and self.choices and value not in self.choices:
            raise PydanticCustomError("choice", "not a choice")
        return value

    def __get_pydantic_core_schema__(self, source, handler):
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema, handler):
        """Returns choices as an enum, and names as suggestions, since a user's path is valid too."""
        made = handler(schema)
        if self.choices:
            made["enum"] = [*self.choices, *([None] if {"type": "null"} in made.get("anyOf", []) else [])]
        if self.names:
            made["examples"] = list(self.names)
        return made


def setting(default: Any, doc: str, *, ge=None, gt=None, le=None, choices=None, names=None, meant=None,
            how: bool = False) -> Any:
    """Declares a setting: default, meaning with unit, inclusive and exclusive bounds; see About."""
    field = Field(default, description=doc, ge=ge, gt=gt, le=le)
    field.metadata.append(About(how, choices, names, meant))
    return field


def section(kind: type[Section]) -> Any:
    return Field(default_factory=kind)


def about(field: FieldInfo) -> About:
    """Returns what `setting` declared for a field; empty for a section."""
    return next((one for one in field.metadata if isinstance(one, About)), About())


def listed(choices: tuple) -> str:
    """Returns choices as YAML writes them, with commas between."""
    return ", ".join(str(one).lower() if isinstance(one, bool) else str(one) for one in choices)


def bound(field: FieldInfo, name: str) -> float | None:
    """Returns the bound `ge`, `gt` or `le` of a field, None without one."""
    return next((getattr(one, name) for one in field.metadata if hasattr(one, name)), None)


def converted(value: Any, kind: Any) -> Any:
    """Converts `value` to a setting's type if possible; otherwise leaves it for pydantic to reject.

    1e3 is a whole number, a number may be given for a text, and an environment text is parsed as the type requires.
    """
    kinds = [one for one in (get_args(kind) if isinstance(kind, UnionType) else (kind,)) if one is not type(None)]
    if isinstance(value, FromEnvironment):
        read = value.as_value()
        value = str(value) if str in kinds and type(read) not in {get_origin(k) or k for k in kinds} - {
            str, int, float} else read
    if kinds == [Any] or (isinstance(value, dict) and kinds[0] == dict[str, Any]):
        return settled(value)
    if isinstance(value, list) and (of_list := next((k for k in kinds if get_origin(k) is list), None)):
        element, = get_args(of_list)
        return value if element == dict[str, Any] else [converted(one, element) for one in value]
    if isinstance(value, float) and int in kinds and float not in kinds and value.is_integer():
        value = int(value)
    if type(value) is int and abs(value) >= LARGEST:
        raise PydanticCustomError("too_large", "{digits}", {"digits": int(math.log10(abs(value))) + 1})
    return str(value) if type(value) in (int, float) and str in kinds and not {int, float} & set(kinds) else value


def wrong(value: Any, needed: str, key: str) -> Problem:
    """Returns the problem of a value of another type."""
    kinds = {type(None): "null", dict: "a mapping", list: "a list", bool: str(value).lower()}
    found = f"the text {str(value)!r}" if isinstance(value, str) else kinds.get(type(value), value)
    return Problem(key, f"needed {needed}, found {found}.")
