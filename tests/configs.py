"""The default recipe, composed once, and copies of it in which a test changes what it is about."""

import copy
from functools import cache
from typing import Any

from pipeline.compose import compose


@cache
def composed(*overrides: str) -> dict[str, Any]:
    """The configuration with these overrides (0.2 s); not to be changed."""
    return compose(list(overrides))


def changed(values: dict[str, Any], base: dict[str, Any] | None = None) -> dict[str, Any]:
    """A copy of the configuration with dotted keys set, unchecked; `stages.sft.key` sets one of a stage."""
    config = copy.deepcopy(composed() if base is None else base)
    for key, value in values.items():
        parts, target = key.split("."), config
        if parts[0] == "stages" and len(parts) > 1:
            target = next(s for s in config["stages"] if s["stage_name"] == parts[1])
            parts = parts[2:]
        for part in parts[:-1]:
            target = target[int(part)] if part.isdigit() else target.setdefault(part, {})
        target[parts[-1]] = value
    return config
