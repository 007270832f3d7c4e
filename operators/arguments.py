"""Reads a named function's signature: the columns it needs, and the user's `*_args` merged over its own defaults."""

import inspect
from collections.abc import Callable
from typing import Any

from pipeline.errors import ConfigError, nearest


def arguments(function: Callable, given: dict[str, Any], what: str) -> dict[str, Any]:
    """The keyword arguments with a default of `function`, overlaid with `given`.

    Raises ConfigError for a name that the function does not have; `what` is the configuration key to blame.
    """
    own = {
        name: p.default
        for name, p in inspect.signature(function).parameters.items()
        if p.default is not inspect.Parameter.empty
    }
    for name in given:
        if name not in own:
            raise ConfigError(f"{what}: '{function.__name__}' has no argument '{name}'.{nearest(name, own)} "
                              f"It has: {', '.join(own) or 'none'}.")
    return {**own, **given}


def needed_columns(function: Callable) -> tuple[str, ...]:
    """The parameters of `function` without a default, in order: columns that its caller must hand it.

    Works for a functools.partial too: an argument that is bound by name counts as having a default.
    """
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.default is inspect.Parameter.empty)
