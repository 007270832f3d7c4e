"""Reads a named function's signature: the columns it needs, and the user's `*_args` merged over its own defaults."""

import inspect
import math
from collections.abc import Callable
from typing import Any

from pipeline.store.errors import ConfigError, nearest


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


def check_number(key: str, value: Any, least: float = -math.inf, most: float = math.inf,
                 above: float | None = None) -> None:
    """Raises ConfigError unless `value` is a finite number, least <= value <= most, and greater than `above`.

    key: the configuration key to blame.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if number and least <= value <= most and (above is None or value > above):
        return
    lower = f"greater than {above:g}" if above is not None else f"at least {least:g}" if least > -math.inf else ""
    upper = f"at most {most:g}" if most < math.inf else ""
    bounds = " and ".join(filter(None, (lower, upper)))
    raise ConfigError(f"{key}={value!r}: needed a finite number{' ' * bool(bounds)}{bounds}.")


def check_choice(key: str, value: Any, choices: tuple) -> None:
    """Raises ConfigError unless `value` is one of `choices`."""
    if value not in choices:
        raise ConfigError(f"{key}={value!r}: needed one of {', '.join(map(repr, choices))}."
                          f"{nearest(str(value), map(str, choices))}")
