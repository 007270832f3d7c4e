"""Rules about what a stage changes on its way (pipeline/settings/changes.py)."""

from collections.abc import Iterator
from typing import Any

from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.settings import changes
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.key_names import exists
from ouroboros.pipeline.settings.schema import read, unknown
from ouroboros.pipeline.settings.setting import plain, put
from ouroboros.pipeline.store.errors import Problem


def unfit_changes(recipe: Recipe) -> Iterator[Problem]:
    """Yields what is wrong with the steps, keys and values of changes, stage by stage."""
    for name, settings in recipe.settings.items():
        for step, values in settings.changes.items():
            place, last = f"changes.{step}", settings.buffer.total_steps
            if not step.isdecimal() or int(step) < 1:
                yield Problem(place, "needed the number of a trainer step, at least 1.", stages=[name])
            elif settings.kind.trains and last and int(step) >= last:
                yield Problem(place, f"no step follows: needed a step before buffer.total_steps={last}.", stages=[name])
            found = (one for key, value in values.items() for one in _wrong(settings, key, value))
            yield from (one.but(key=f"{place}: {one.key}", stages=[name]) for one in found)


def _wrong(settings: Config, key: str, value: Any) -> Iterator[Problem]:
    acts = changes.acts(key) if exists(key) else "unknown"
    if acts == "unknown":
        yield unknown(key)
    elif acts is None:
        yield Problem(key, "no step depends on it.", "Set it for the whole stage; it can change with any launch.")
    elif acts == "never":
        yield Problem(key, "cannot change on the way.", "docs/branches.md names the settings that can.")
    elif not settings.kind.trains or (acts == "explorer" and not settings.kind.explores):
        yield Problem(key, f"is of the {acts}, which this stage does not have.")
    else:
        yield from read(put(plain(settings), key, value), Config)[1]


def unfit_switches(settings: Config) -> Iterator[Problem]:
    """Yields the changes of a stage that would switch a critic or a teacher on or off."""
    for step, one in changes.segments(settings):
        for what in ("has_critic", "has_teacher"):
            if getattr(one.algorithm, what) != getattr(settings.algorithm, what):
                yield Problem(f"changes.{step}: algorithm.advantage_fn", f"a {what.removeprefix('has_')} cannot be "
                              "switched on or off on the way.", found=one.algorithm.advantage_fn)
