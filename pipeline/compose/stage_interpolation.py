"""Makes interpolations mean the values of the stage that they are used in: `${buffer.batch_size}` is the stage's own.

Stages are merged over the settings of the run after OmegaConf resolved them. A setting whose interpolation names what a
stage sets is therefore copied into the stage's entry, and names it there: `${stages.0.buffer.batch_size}`.
"""

from functools import partial
from typing import Any

from ouroboros.pipeline.compose.interpolation import NAMED, from_root
from ouroboros.pipeline.compose.recipe import sets
from ouroboros.pipeline.settings.config import ITS_OWN
from ouroboros.pipeline.settings.secrets import texts
from ouroboros.pipeline.settings.setting import at


def in_stages(composed: dict[str, Any]) -> dict[str, Any]:
    """Returns a composition in plain dicts and lists, unresolved, with the interpolations of every stage its own."""
    run = {key: value for key, value in composed.items() if key != "stages"}
    stages = composed["stages"]
    if not isinstance(stages, list):
        return composed
    return {**run, "stages": [_own(run, entry, f"stages.{index}") if isinstance(entry, dict) else entry
                              for index, entry in enumerate(stages)]}


def _own(run: dict[str, Any], entry: dict[str, Any], place: str) -> dict[str, Any]:
    """Returns an entry with every setting in it that depends on what the entry sets. place: `stages.<index>`."""
    changed = True
    while changed:  # what is copied may itself be named by another setting
        changed = False
        merged = _merged(run, {key: value for key, value in entry.items() if key not in ITS_OWN})
        for key, text in [found for found in texts(merged) if "${" in found[1]]:
            named = {name for match in NAMED.finditer(text) if (name := _within(match, key, place))}
            for section in (name for name in named if sets(entry, name) and isinstance(at(merged, name), dict)
                            and at(entry, name) != at(merged, name)):  # all of it, the run's part too
                entry, changed = _with(entry, merged, section, at(merged, section)), True
            relative = sets(entry, key) and any(match[1] for match in NAMED.finditer(text))
            if not relative and not any(sets(entry, name) for name in named):
                continue
            own = NAMED.sub(partial(_redirected, key=key, place=place, entry=entry), text)
            if at(entry, key) != own:
                entry, changed = _with(entry, merged, key, own), True
    return entry


def _merged(base: Any, over: Any) -> Any:
    """Merges `over` into a copy of `base`: mappings key by key, everything else as a whole."""
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return over
    return {**base, **{key: _merged(base[key], value) if key in base else value for key, value in over.items()}}


def _within(match, key: str, place: str) -> str:
    """Returns the setting that an interpolation at `key` of a stage names, from the stage's root."""
    return from_root(match, key).removeprefix(f"{place}.")


def _redirected(match, key: str, place: str, entry: dict[str, Any]) -> str:
    """Returns an interpolation that names the stage's own value where the entry sets it, else the run's."""
    name = _within(match, key, place)
    return f"${{{place}.{name}}}" if sets(entry, name) else f"${{{name}}}"


def _with(entry: Any, merged: Any, key: str, value: Any) -> Any:
    """Returns an entry with a dotted key set. merged: the same over the settings of the run, whose list is copied where
    the key is in one."""
    first, _, rest = key.partition(".")
    if isinstance(entry, list):
        index = int(first)
        return [*entry[:index], _with(entry[index], merged[index], rest, value) if rest else value, *entry[index + 1:]]
    if not rest:
        return {**entry, first: value}
    below = entry.get(first, merged[first] if isinstance(merged[first], list) else {})
    return {**entry, first: _with(below, merged[first], rest, value)}
