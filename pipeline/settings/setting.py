"""What a setting is: a field of a pydantic model with its default, meaning, bounds and choices."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import UnionType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, core_schema

from pipeline.settings.environment_values import FromEnvironment, settled

LARGEST = 2**63  # what 64 bits hold: torch, Parquet and DuckDB count with no more


class Section(BaseModel):
    """A section of settings. A text may be given as a number and a whole number as 1e3; nothing else is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _as_declared(cls, value: Any, info) -> Any:
        field = cls.model_fields[info.field_name]
        return about(field).choice(converted(value, field.annotation))


@dataclass(frozen=True)
class About:
    """What a setting has beside type, default and bounds.

    how: whether it says how a stage runs and not what it makes. choices: may depend on the current directory. names:
    choices besides `package.module:function` of the user's own. meant: from another spelling of a choice to the choice.
    """

    how: bool = False
    given: tuple | Callable[[], tuple] | None = None
    names: tuple[str, ...] | None = None
    meant: Callable[[str], str] | None = None

    @property
    def choices(self) -> tuple | None:
        return self.given() if callable(self.given) else self.given

    def choice(self, value: Any) -> Any:
        """The choice that a text is but for its capitals, `DEBUG` for `debug`, or another spelling of."""
        if not isinstance(value, str) or not self.choices:
            return value
        text = self.meant(value) if self.meant else value
        return text if text in self.choices else next(
            (one for one in self.choices if str(one).lower() == value.lower()), value)

    def check(self, value: Any) -> Any:
        """The value. Raises PydanticCustomError when it is neither a choice nor, where names are, a function's path."""
        listed = value if isinstance(value, list) else [value]
        if value is not None and self.names and not all(":" in one or one in self.names for one in listed):
            raise PydanticCustomError("name", "unknown name")
        if value is not None and self.choices and value not in self.choices:
            raise PydanticCustomError("choice", "not a choice")
        return value

    def __get_pydantic_core_schema__(self, source, handler):
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema, handler):
        """Choices as an enum; names as suggestions, since a path of the user's own is right too."""
        made = handler(schema)
        if self.choices:
            made["enum"] = [*self.choices, *([None] if "anyOf" in made else [])]
        if self.names:
            made["examples"] = list(self.names)
        return made


def setting(default: Any, doc: str, *, ge=None, gt=None, le=None, choices=None, names=None, meant=None,
            how: bool = False) -> Any:
    """A setting: default, meaning (unit included), inclusive/exclusive lower and inclusive upper bound; see About."""
    field = Field(default, description=doc, ge=ge, gt=gt, le=le)
    field.metadata.append(About(how, choices, names, meant))
    return field


def section(kind: type[Section]) -> Any:
    return Field(default_factory=kind)


def about(field: FieldInfo) -> About:
    """What `setting` said of a field; of a section nothing."""
    return next((one for one in field.metadata if isinstance(one, About)), About())


def bound(field: FieldInfo, name: str) -> float | None:
    """The bound `ge`, `gt` or `le` of a field, None without one."""
    return next((getattr(one, name) for one in field.metadata if hasattr(one, name)), None)


def converted(value: Any, kind: Any) -> Any:
    """`value` as a setting of this type means it; what has no such meaning stays as it is, for pydantic to refuse.

    1e3 is a whole number, a number may stand for a text, and a text of the environment is read as the type asks.
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
