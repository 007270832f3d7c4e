"""Warns of interpolations that resolve before a stage sets the setting they refer to: they have the run's value.

`${buffer.batch_size}` is resolved once, in the settings of the run, and stages are merged over the result.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.compose.interpolation import settings_named
from pipeline.compose.stage_settings import says
from pipeline.store.errors import Problem


def early_values(composed: dict[str, Any]) -> list[Problem]:
    """Lists a warning for each stage and setting. composed: plain dicts and lists, interpolations unresolved."""
    run = list(_leaves({key: value for key, value in composed.items() if key != "stages"}))
    found = []
    for index, entry in enumerate(composed["stages"] if isinstance(composed["stages"], list) else ()):
        left = [(key, value, key) for key, value in run if not says(entry, key)]
        own = [(key, value, f"stages.{index}.{key}") for key, value in _leaves(entry)]
        found += [Problem(key, f"has the {name} of the run, not that of the stage: interpolations are resolved before "
                          f"stages are merged.", f"If the stage's is meant, set {key} there.", found=value,
                          stages=[str(entry.get("stage_name"))])
                  for key, value, place in [*left, *own] for name in settings_named(value, place) if says(entry, name)]
    return found


def _leaves(nest: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Returns (dotted key, text) of every text with an interpolation."""
    if isinstance(nest, dict | list):
        pairs = nest.items() if isinstance(nest, dict) else enumerate(nest)
        for name, value in pairs:
            yield from _leaves(value, f"{key}.{name}" if key else str(name))
    elif isinstance(nest, str) and "${" in nest:
        yield key, nest
