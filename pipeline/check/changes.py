"""Rules about what a stage changes on its way (pipeline/settings/changes.py)."""

import math
from collections.abc import Iterator
from typing import Any

from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.settings import changes
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.key_names import exists
from ouroboros.pipeline.settings.schema import read, unknown
from ouroboros.pipeline.settings.setting import plain, put
from ouroboros.pipeline.store.errors import Problem

REFUSED = {None: "no step depends on it; set it for the whole stage, with any launch.",
           "never": "cannot change on the way. docs/branches.md names the settings that can."}


def unfit_changes(recipe: Recipe) -> Iterator[Problem]:
    """Yields what is wrong with the steps, keys and values of changes, stage by stage."""
    for name, settings in recipe.settings.items():
        for step, values in settings.changes.items():
            if not step.isdecimal() or not 0 < int(step) < (settings.buffer.total_steps or math.inf):
                yield Problem(f"changes.{step}", "needed a trainer step, at least 1 and not the last.", stages=[name])
            yield from (one.but(key=f"changes.{step}: {one.key}", stages=[name]) for key, value in values.items()
                        for one in _wrong(settings, key, value))


def _wrong(settings: Config, key: str, value: Any) -> list[Problem]:
    if not exists(key):
        return [unknown(key)]
    if (acts := changes.acts(key)) in REFUSED:
        return [Problem(key, REFUSED[acts])]
    if not settings.kind.trains or (acts == "explorer" and not settings.kind.explores):
        return [Problem(key, f"is of the {acts}, which this stage does not have.")]
    made, problems = read(put(plain(settings), key, value), Config)
    if any(getattr(made.algorithm, one) != getattr(settings.algorithm, one) for one in ("has_critic", "has_teacher")):
        problems.append(Problem(key, "a critic or a teacher cannot be switched on or off on the way.", found=value))
    return problems
