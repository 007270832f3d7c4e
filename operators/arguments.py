"""The arguments of a named function: defaults merged with a user's `*_args`."""

import inspect
from collections.abc import Callable
from typing import Any

from ouroboros.pipeline.settings.arguments.base import problems
from ouroboros.pipeline.settings.arguments.users import Signature
from ouroboros.pipeline.settings.declared import TABLES
from ouroboros.pipeline.store.errors import ConfigError


def arguments(part: str, name: str, function: Callable, given: dict[str, Any], key: str) -> dict[str, Any]:
    """The keyword arguments of `function`: its defaults, overridden by `given`.

    part: last part of the setting that names it (pipeline/settings/declared.py). key: the setting that contains
    `given`. Raises ConfigError for unknown names and, for our own functions, for invalid values.
    """
    if ":" not in name:
        return dict(TABLES[part][name].bind(name, given, key))
    own = {one: p.default for one, p in inspect.signature(function).parameters.items() if p.default is not p.empty}
    if found := problems(key, name, [Signature(optional=list(own))], given):
        raise ConfigError(" ".join(found))
    return {**own, **given}
