"""What a setting is: a field of a dataclass with its default, meaning, bounds and choices."""

from dataclasses import field
from typing import Any


def setting(default: Any, doc: str, *, ge=None, gt=None, le=None, choices=None, names=None, how: bool = False):
    """A setting: default, meaning (unit included), inclusive/exclusive lower and inclusive upper bound, choices.

    names: choices beside which `package.module:function` of the user's own is one.
    """
    metadata = {"doc": doc, "ge": ge, "gt": gt, "le": le, "choices": choices, "names": names, "how": how}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def section(kind: type):
    return field(default_factory=kind)
