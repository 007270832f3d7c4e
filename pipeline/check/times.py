"""How long the steps of a stage will take, by those of earlier stages on this machine with the same model.

A step is counted by its rows: seconds and tokens of a row are the means of the last steps of the newest such stage.
Evaluations, and what engine and trainer need to start, come on top.
"""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ouroboros.pipeline.check.workload import counted, workload
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.job.progress import duration, thousands
from ouroboros.pipeline.plan.identity import Stage
from ouroboros.pipeline.plan.plan import Plan
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.store import files, tables
from ouroboros.pipeline.store.errors import OuroError

LAST = 50  # steps of the earlier stage; the first of all compiles, and is left out


class Expected(NamedTuple):
    """seconds, tokens: of all optimizer steps of a stage. source: the directory name of the earlier stage."""

    seconds: float
    tokens: float
    source: str


def expected(stage: Stage, config: Config) -> Expected | None:
    """Returns what the steps of a stage will take; None where no stage of its kind has run here with its model.

    config: its settings, with the steps that are known."""
    work = workload(config)
    if not (config.kind.trains and work.trainer_steps):
        return None
    for path in sorted(Path(stage.root, "store").glob("*/stage.json"), key=lambda one: -one.stat().st_mtime_ns):
        with contextlib.suppress(OuroError, FileNotFoundError):  # of one that is damaged, or deleted meanwhile
            spec, steps = files.read_json(path), tables.steps_present(path.parent, "steps")[1:][-LAST:]
            if steps and spec["kind"] == stage.kind and _base(spec["inputs"]) == _base(stage.inputs):
                made = list(tables.read_steps(path.parent, "steps", steps))
                rows = work.trainer_steps * work.trained / sum(one.trained_rows for one in made)
                return Expected(rows * sum(one.seconds for one in made), rows * sum(one.trained_tokens for one in made),
                                path.parent.name)
    return None


def _base(inputs: dict[str, str]) -> str | None:
    """Returns the directory of the model that the first stage on the way to these inputs began with."""
    model = inputs.get("model")
    spec = Path(model or "", "stage.json")
    return (_base(files.read_json(spec)["inputs"]) or model) if model and spec.exists() else model


def described(config: Config, found: Expected | None) -> list[tuple[str, str]]:
    """Describes the tokens and the time of a training stage, as (word, sentence). found: of `expected`."""
    work = workload(config)
    if not (config.kind.trains and work.trainer_steps):
        return []
    if found:
        return [("time", f"about {duration(found.seconds)} for about {thousands(found.tokens)} trained tokens, at the "
                         f"pace of {found.source}; starting and evaluating come on top")]
    return [("time", f"not known: no stage of this kind has run here with this model; at most "
                     f"{thousands(work.trainer_steps * work.trained * work.longest)} trained tokens")]


def of_plan(plan: Plan) -> Iterator[tuple[Stage, str, Expected | None]]:
    """Yields the incomplete stages of a plan that train: the stage, its tokens and time in a sentence, and expected."""
    settings = counted(Recipe.of(plan.config))
    for stage in plan.stages:
        if stage.name in settings and not files.is_complete(stage.directory):
            found = expected(stage, settings[stage.name])
            for _, words in described(settings[stage.name], found):
                yield stage, words, found


def compared(before: Iterable[tuple[Stage, str, Expected | None]]) -> Iterator[str]:
    """Yields what each stage that is complete now took, and what was expected. before: of `of_plan`."""
    for stage, _, found in before:
        if found and files.is_complete(stage.directory):
            took = files.read_json(Path(stage.directory) / files.MANIFEST)["seconds"]
            yield f"{stage.name}: took {duration(took)}; its steps were expected to take {duration(found.seconds)}"
