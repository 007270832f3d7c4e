"""The settings that a training stage changes on its way: `changes`, trainer step -> dotted key -> value.

A change after trainer step k acts on the trainer from step k + 1, and on the explorer from the first of its steps none
of whose rows trainer steps up to k read (Schedule.until). docs/branches.md has a table of what can change.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ouroboros.pipeline.settings.config import Config, walk
from ouroboros.pipeline.settings.key_names import general
from ouroboros.pipeline.settings.kinds import EVALUATION_SETS
from ouroboros.pipeline.settings.rates import TOTALS
from ouroboros.pipeline.settings.setting import about, acts_on, at, plain, put


def of(config: Config) -> list[tuple[int, Mapping[str, Any]]]:
    """Returns (trainer step, what changes after it) of a stage's settings, in order."""
    return sorted((int(step), values) for step, values in (at(config, "changes") or {}).items())


def changed(config: Config, values: Mapping[str, Any]) -> Config:
    """Returns settings with other values, unchecked. A function that is named anew has no arguments of the former."""
    nested = plain(config)
    for key in sorted(values, key=lambda one: not one.endswith("_fn")):
        if key.endswith("_fn") and values[key] != at(nested, key):
            nested = put(nested, f"{key}_args", {})
        nested = put(nested, key, values[key])
    return Config.partial(nested)


def segments(config: Config) -> Iterator[tuple[int, Config]]:
    """Yields (trainer step, settings after it): 0 with those that the stage begins with, then of each change."""
    config, steps = config.but("changes", {}), of(config)
    yield 0, config
    for step, values in steps:
        config = changed(config, values)
        yield step, config


def acts(key: str) -> str | None:
    """Returns on whose steps a change of a setting acts, `trainer` or `explorer`; `never` where it cannot change; None
    where no step depends on it. key: dotted, of a setting or of one of its arguments."""
    fields, name = dict(walk()), general(key)
    while name and name not in fields:
        name = name.rpartition(".")[0]
    if not name or name.startswith(EVALUATION_SETS) or name in TOTALS:
        return None
    return about(fields[name]).acts if about(fields[name]).how else acts_on(Config, key)
