"""Declares a setting: a pydantic field with default, meaning, bounds and choices."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, core_schema

from ouroboros.pipeline.settings.arguments.base import LONGEST, types
from ouroboros.pipeline.store.errors import Problem

LARGEST = 2**63  # 64 bits: the limit of torch, Parquet and DuckDB
LIMIT = {"ge": 1, "le": LONGEST}  # bounds of a time limit in seconds; below 1 nothing could meet it


class FromEnvironment(str):
    """A text that comes, whole or in part, from an environment interpolation."""

    def as_value(self) -> Any:
        """Returns the text's value in a YAML file: a number, true, a list; else the plain text."""
        from ouroboros.pipeline.store.yaml_values import scalar

        return scalar(str(self))


class Section(BaseModel):
    """A section of settings, read in pydantic's lax mode: a whole number may be given as 1e3, a number as a text and a
    text as a number, whose letters are kept where it is read. A boolean is no number.

    acts: what the settings have that declare none, in sections within it too (see About). What follows from settings
    is a cached_property: whoever changes one takes a copy, which has none yet.
    """

    acts: ClassVar[str | None] = None
    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True, allow_inf_nan=False, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _as_declared(cls, value: Any, info) -> Any:
        field = cls.model_fields[info.field_name]
        return about(field).choice(converted(value, field.annotation))

    def __getattr__(self, name: str) -> Any:
        if name in type(self).model_fields:
            raise Absent(f"{type(self).__name__}.{name} is not in these settings: its value could not be read, or a "
                         "stage that does not depend on it reads it (pipeline/settings/kinds.py)", name=name)
        return super().__getattr__(name)

    def __copy__(self) -> Self:
        made = super().__copy__()
        for name in facts_of(type(self)):
            made.__dict__.pop(name, None)
        return made

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        derived = facts_of(type(self))
        return ((name, value) for name, value in list(vars(self).items()) if name not in derived)

    @classmethod
    def partial(cls, given: dict[str, Any]) -> Self:
        """Returns a section with the given settings alone, unchecked; reading any other raises Absent."""
        fields = cls.model_fields
        return _empty(cls).model_copy(update={
            name: built(fields[name].annotation if name in fields else None, value) for name, value in given.items()})

    def but(self, key: str, value: Any) -> Self:
        """Returns a copy with another value of a dotted key; what does not change is shared."""
        return put(self, key, value)

    def without(self, key: str) -> Self:
        """Returns a copy that lacks a dotted key; what is below a list or a mapping is missing as a whole."""
        name, _, below = key.partition(".")
        part, made = self.__dict__.get(name), self.model_copy()
        if below and isinstance(part, Section):
            made.__dict__[name] = part.without(below)
        else:
            made.__dict__.pop(name, None)
        return made

    def merged(self, over: dict[str, Any]) -> Self:
        """Returns a copy with given settings: sections and mappings key by key, everything else as a whole."""
        fields = type(self).model_fields
        return self.model_copy(update={name: merge(getattr(self, name), value, fields[name].annotation)
                                       for name, value in over.items()})

    def broken_rules(self, above: str = "") -> Iterator[Problem]:
        """Yields the problems that the rules of this section, and of those below it, find. above: its dotted key.

        A rule that reads an absent value finds nothing: its problem would be a consequence of another one.
        """
        kinds = [kind for kind in reversed(type(self).__mro__) if issubclass(kind, Section)]
        for one in (member for kind in kinds for member in vars(kind).values()):
            if getattr(one, "is_rule", False):
                with contextlib.suppress(Absent):
                    yield from (problem.below(above) for problem in one(self))
        for name, value in self:
            key = f"{above}.{name}" if above else name
            inner = [(key, value)] if isinstance(value, Section) else (
                (f"{key}.{step}", one) for step, one in _parts(value) or ())
            for below, part in inner:
                if isinstance(part, Section):
                    yield from part.broken_rules(below)


@cache
def facts_of(kind: type[Section]) -> frozenset[str]:
    """Returns the names of what follows from the settings of a section."""
    return frozenset(name for one in kind.__mro__ for name, value in vars(one).items()
                     if isinstance(value, cached_property))


@cache
def _empty(kind: type[Section]) -> Section:
    made = kind.model_construct()
    made.__dict__.clear()
    return made


class Absent(AttributeError):
    """A section does not hold a setting: its value is invalid, or it is not among the settings of a stage."""


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def elements(kind: Any) -> type[Section] | None:
    """Returns the section type of a list's elements or a mapping's values; None for any other type."""
    *_, element = get_args(kind) if get_origin(kind) in (list, dict) else (None,)
    return element if is_section(element) else None


def built(kind: Any, value: Any) -> Any:
    """Returns the plain value of a setting of type `kind` with sections in place of their mappings, unchecked."""
    if is_section(kind):
        return kind.partial(value) if isinstance(value, dict) else value
    if element := elements(kind):
        return ({name: built(element, one) for name, one in value.items()} if isinstance(value, dict) else
                [built(element, one) for one in value])
    return value


def merge(base: Any, over: Any, kind: Any = None) -> Any:
    """Merges `over` into a copy of the value of a setting of type `kind`: sections and mappings key by key, everything
    else as a whole."""
    if isinstance(base, Section) and isinstance(over, dict):
        return base.merged(over)
    if isinstance(base, dict) and isinstance(over, dict):
        element = elements(kind)
        return {**base, **{name: merge(base.get(name), one, element) for name, one in over.items()}}
    return built(kind, over)


def _parts(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """Returns (name or index, part) of a section, a mapping or a list; None for any other value."""
    if isinstance(value, Section | dict):
        return value.items() if isinstance(value, dict) else iter(value)
    return enumerate(value) if isinstance(value, list) else None


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted key, value) of each single value in nested settings, those in lists and mappings included."""
    if (parts := _parts(value)) is None:
        yield key, value
    for name, part in parts or ():
        yield from leaves(part, f"{key}.{name}" if key else str(name))


def plain(value: Any, change: Callable[[str, Any], Any] | None = None, key: str = "") -> Any:
    """Returns nested settings as dicts and lists, as a file holds them. change: of each leaf, from its dotted key."""
    if (parts := _parts(value)) is None:
        return change(key, value) if change else value
    made = {name: plain(part, change, f"{key}.{name}" if key else str(name)) for name, part in parts}
    return list(made.values()) if isinstance(value, list) else made


def own_name(key: str) -> str:
    """Returns the last name in a dotted key: that of the list, for an element."""
    return next((part for part in reversed(key.split(".")) if not part.isdigit()), "")


def given(section: Section) -> dict[str, Any]:
    """Returns the settings that a section was read from, without defaults; elements of lists and mappings are whole."""
    return {name: given(part) if isinstance(part, Section) else plain(part) for name, part in section
            if name in section.model_fields_set}


def at(value: Any, key: str, absent: Any = None) -> Any:
    """Returns what nested settings, plain ones too, have at a dotted key; `absent` where there is nothing."""
    for part in key.split("."):
        if isinstance(value, list):
            if not part.isdigit() or int(part) >= len(value):
                return absent
            value = value[int(part)]
        else:
            within = vars(value) if isinstance(value, Section) else value
            if not isinstance(within, dict) or part not in within:
                return absent
            value = within[part]
    return value


def put(value: Any, key: str, new: Any) -> Any:
    """Returns nested settings, plain ones too, with another value at a dotted key; absent mappings are made."""
    if not key:
        return new
    first, _, below = key.partition(".")
    if isinstance(value, list):
        return [put(one, below, new) if at == int(first) else one for at, one in enumerate(value)]
    made = {first: put(at(value, first), below, new)}
    return value.model_copy(update=made) if isinstance(value, Section) else {**(value or {}), **made}


def rule(function: Callable[[Any], Iterator[Problem]]) -> Callable[[Any], Iterator[Problem]]:
    """Marks a method of a section that yields a problem wherever its settings contradict each other."""
    function.is_rule = True
    return function


@dataclass(frozen=True)
class About:
    """Properties of a setting besides type, default and bounds.

    how: whether it affects execution rather than results. choices: may depend on the current directory. names: choices
    in addition to a user's `package.module:function`. meant: from another spelling of a choice to the choice. unlisted:
    further values that only tests set. own: a user's `package.module:Class` is a choice too. acts: whose steps a change
    on the way (setting `changes`) acts on, trainer or explorer; or never, where it cannot change.
    """

    how: bool = False
    given: tuple | Callable[[], tuple] | None = None
    names: tuple[str, ...] | None = None
    meant: Callable[[str], str] | None = None
    unlisted: tuple = ()
    own: bool = False
    acts: str | None = None

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
        is_own = self.own and ":" in str(value)
        if value is not None and self.choices and not is_own and value not in (*self.choices, *self.unlisted):
            raise PydanticCustomError("choice", "not a choice")
        return value

    def __get_pydantic_core_schema__(self, source, handler):
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema, handler):
        """Returns choices as an enum, and names as suggestions, since a user's path is valid too."""
        made = handler(schema)
        if self.choices and self.own:
            made["examples"] = list(self.choices)
        elif self.choices:
            made["enum"] = [*self.choices, *([None] if {"type": "null"} in made.get("anyOf", []) else [])]
        if self.names:
            made["examples"] = list(self.names)
        return made


def setting(default: Any, doc: str, *, ge=None, gt=None, le=None, choices=None, names=None, meant=None,
            how: bool = False, unlisted: tuple = (), own: bool = False, acts: str | None = None) -> Any:
    """Declares a setting: default, meaning with unit, inclusive and exclusive bounds; see About."""
    field = Field(default, description=doc, ge=ge, gt=gt, le=le)
    field.metadata.append(About(how, choices, names, meant, unlisted, own, acts))
    return field


def section(kind: type[Section]) -> Any:
    return Field(default_factory=kind)


def values_of(value: Any, key: str) -> list[tuple[str, Any]]:
    """Returns (dotted key, value) of every setting a key matches; `*` matches every element of a list or mapping."""
    first, _, below = key.partition(".")
    held = dict(_parts(value) or ())
    if not isinstance(value, Section) and first != "*" and first not in held:  # arguments are free
        return []
    found = held if first == "*" else {first: held[first]}
    return [(".".join(filter(None, (str(name), inner))), one) for name, part in found.items()
            for inner, one in (values_of(part, below) if below else [("", part)])]


def about(field: FieldInfo) -> About:
    """Returns what `setting` declared for a field; empty for a section."""
    return next((one for one in field.metadata if isinstance(one, About)), About())


def acts_on(kind: type[Section], key: str, above: str | None = None) -> str | None:
    """Returns the mark `acts` of the setting of a section at a dotted key, or at one below it: its own, else that of
    the section that it is in, or of the one around that (above)."""
    name, _, below = key.partition(".")
    field = kind.model_fields[name]
    found, inner = about(field).acts or kind.acts or above, field.annotation
    if element := elements(inner):
        inner, below = element, below.partition(".")[2]
    return acts_on(inner, below, found) if is_section(inner) and below else found


def listed(choices: tuple) -> str:
    """Returns choices as YAML writes them, with commas between."""
    return ", ".join(str(one).lower() if isinstance(one, bool) else str(one) for one in choices)


def parsed_environment(value: Any) -> Any:
    """Returns a copy of nested settings with every environment text parsed like YAML.

    Keys remain text, `1: x` too: they are argument names, and JSON, in which a stage receives them, has only text keys.
    """
    if isinstance(value, dict):
        return {name if isinstance(name, str) else str(name).lower(): parsed_environment(part)
                for name, part in value.items()}
    if isinstance(value, list):
        return [parsed_environment(part) for part in value]
    return parsed_environment(value.as_value()) if isinstance(value, FromEnvironment) else value


def converted(value: Any, kind: Any) -> Any:
    """Returns a value for pydantic to read: a text of the environment as the type requires, true as no number.

    Raises PydanticCustomError for a number that is too large.
    """
    kinds = types(kind)
    if isinstance(value, FromEnvironment):
        read = value.as_value()
        value = str(value) if str in kinds and type(read) not in {get_origin(k) or k for k in kinds} - {
            str, int, float} else read
    if kinds == [Any] or (isinstance(value, dict) and kinds[0] == dict[str, Any]):
        return parsed_environment(value)
    if isinstance(value, list) and (of_list := next((k for k in kinds if get_origin(k) is list), None)):
        element, = get_args(of_list)
        return value if element == dict[str, Any] else [converted(one, element) for one in value]
    is_whole = type(value) is int or (type(value) is float and float not in kinds and math.isfinite(value))
    if is_whole and abs(value) >= LARGEST and str not in kinds:
        raise PydanticCustomError("too_large", "{digits}", {"digits": int(math.log10(abs(value))) + 1})
    if isinstance(value, bool) and bool not in kinds and {int, float} & set(kinds):
        raise PydanticCustomError("boolean", "a boolean is no number")
    return value
