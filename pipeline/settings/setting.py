"""What a setting is: a field of a dataclass with its default, meaning, bounds and choices."""

from dataclasses import field
from typing import Any


def setting(default: Any, doc: str, *, ge=None, gt=None, le=None, choices=None, names=None, meant=None,
            how: bool = False):
    """A setting: default, meaning (unit included), inclusive/exclusive lower and inclusive upper bound, choices.

    choices: may be a function, where they depend on the current directory.
    names: choices beside which `package.module:function` of the user's own is one.
    meant: a function from a spelling of a choice to the choice.
    """
    metadata = {"doc": doc, "ge": ge, "gt": gt, "le": le, "choices": choices, "names": names, "meant": meant,
                "how": how}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def choices_of(metadata) -> tuple | None:
    """The choices of a setting; None when it has none."""
    choices = metadata["choices"]
    return choices() if callable(choices) else choices


def section(kind: type):
    return field(default_factory=kind)
