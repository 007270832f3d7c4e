"""How long the steps of a stage will take, by earlier stages on this machine with the same model, else by a table.

A step is counted by its rows: seconds and tokens of a row are the means of the last steps of the newest such stage.
Evaluations, and what engine and trainer need to start, come on top.
"""

import contextlib
import os
import platform
from collections.abc import Iterable, Iterator
from functools import cache
from math import lcm
from operator import add
from pathlib import Path
from typing import NamedTuple

from ouroboros.pipeline.check.workload import workload
from ouroboros.pipeline.job.progress import duration, thousands
from ouroboros.pipeline.plan.identity import Stage
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.settings.trainer import runs_ahead
from ouroboros.pipeline.store import files, tables
from ouroboros.pipeline.store.errors import OuroError

LAST = 50  # steps of the earlier stage; the first of all compiles, and is left out
# operations a second in training and in sampling, of which a token takes 6 and 2 times the parameters: of a GPU as
# measured on one H200 with 0.5 billion parameters, and of a thread of a CPU; what a step takes besides, seconds
GPU, THREAD, BESIDES = (2.5e14, 3e13), (2e10, 1e10), 1.0


class Expected(NamedTuple):
    """seconds, tokens: of all optimizer steps of a stage. source: the directory name of the earlier stage; None: a
    table, with the most tokens."""

    seconds: float
    tokens: float
    source: str | None


def expected(stage: Stage, config: Config, parameters: int | None = None, planned: Iterable[Stage] = ()
             ) -> Expected | None:
    """Returns what the steps of a stage will take; None where their number is unknown, or pace and parameters are.

    config: its settings, with the steps that are known. parameters: of its model. planned: all stages of its plan."""
    work = workload(config)
    if not (config.kind.trains and work.trainer_steps):
        return None
    rows = work.trainer_steps * work.trained
    if known := pace(stage.root, stage.kind, _base(stage.inputs, {one.directory: one.inputs for one in planned})):
        return Expected(rows * known.seconds, rows * known.tokens, known.source)
    if parameters is None:
        return None
    tokens = rows * work.longest
    return Expected(tokens * token_seconds(parameters, config.kind.explores, stage.gpus)
                    + work.trainer_steps * BESIDES, tokens, None)


def token_seconds(parameters: int, explores: bool, gpus: int = 0) -> float:
    """Returns what a token takes by its operations, on GPUs or on the threads of this machine. explores: it is sampled
    too."""
    (trains, samples), several = (GPU, gpus) if gpus else (THREAD, os.cpu_count() or 1)
    return parameters * (6 / trains + (2 / samples if explores else 0)) / several


@cache
def pace(root: str, kind: str, base: str | None) -> Expected | None:
    """Returns what a row took in the newest stage of a kind on a model; kept for the other points of a sweep."""
    there = (one for place in (Path(root), probed(root)) for one in place.glob("store/*/stage.json"))
    for path in sorted(there, key=lambda one: -one.stat().st_mtime_ns):
        with contextlib.suppress(OuroError, FileNotFoundError):  # of one that is damaged, or deleted meanwhile
            steps = [one for one in tables.steps_present(path.parent, "steps") if one > 1][-LAST:]
            spec = files.read_json(path) if steps else {}
            if steps and spec["kind"] == kind and _base(spec["inputs"], {}) == base:
                made = list(tables.read_steps(path.parent, "steps", steps))
                rows = sum(one.trained_rows for one in made)
                return Expected(sum(one.seconds for one in made) / rows, sum(one.trained_tokens for one in made) / rows,
                                path.parent.name)
    return None


def probed(root: str) -> Path:
    """Returns where probes of this host are (commands/run/probe.py)."""
    return Path(root, "probe", platform.node())


def _base(inputs: dict[str, str], planned: dict[str, dict[str, str]]) -> str | None:
    """Returns the directory of the model that the first stage on the way to these inputs began with; of one that a
    stage made its name, which is the same in every store. planned: inputs of stages that may not be there, by place."""
    model = inputs.get("model")
    spec = Path(model or "", "stage.json")
    if not model or not (model in planned or spec.exists()):
        return model
    return _base(planned[model] if model in planned else files.read_json(spec)["inputs"], planned) or Path(model).name


def described(stage: Stage, config: Config, found: Expected | None) -> list[tuple[str, str]]:
    """Describes the tokens and the time of a training stage, then a better division of its GPUs, as (word, sentence).
    found: of `expected`."""
    work = workload(config)
    if not (config.kind.trains and work.trainer_steps):
        return []
    if found and found.source:
        return [("time", f"about {duration(found.seconds)} for about {thousands(found.tokens)} trained tokens, at the "
                         f"pace of {found.source}; starting and evaluating come on top"),
                *_division(stage, config, found.source)]
    tokens = f"at most {thousands(work.trainer_steps * work.trained * work.longest)} trained tokens"
    if found:
        return [("time", f"roughly {duration(found.seconds)} for {tokens}, by the operations that a token takes: no "
                         "stage of this kind has run here with this model (--probe measures it); starting and "
                         "evaluating come on top")]
    return [("time", f"not known: no stage of this kind has run here with this model; {tokens}")]


def _division(stage: Stage, config: Config, source: str) -> list[tuple[str, str]]:
    """Describes how `mode=both` would divide the same GPUs between trainer and engines, where training and answering
    would take a tenth less time or more, as (word, sentence); both are taken to be as fast on each GPU as in the
    earlier stage."""
    engine, trainer, nodes = config.explorer.rollout_model, config.trainer, config.cluster.node_num
    if config.mode != "both" or not (config.kind.is_online and stage.gpus):
        return []
    places = (Path(one, "store", source) for one in (stage.root, probed(stage.root)))
    place = next((one for one in places if one.is_dir()), None)
    was = files.read_json(place / "stage.json")["config"] if place else {}
    ranks, engines, each = (at(was, key) for key in (
        "trainer.ranks", "explorer.rollout_model.engine_num", "explorer.rollout_model.tensor_parallel_size"))
    numbers = [one for one in tables.steps_present(place, "steps") if one > 1][-LAST:] if place else []
    steps = tables.read_steps(place, "steps", numbers) if numbers else []
    if None in (ranks, engines, each, *(one.rollout_seconds for one in steps)):
        return []
    trains = sum(one.train_seconds for one in steps) * ranks
    answers = sum(one.rollout_seconds for one in steps) * engines * each
    each, rank = engine.tensor_parallel_size, lcm(trainer.ulysses_sequence_parallel_size, nodes)
    count, together = trainer.ranks + engine.engine_num * each, max if runs_ahead(config) else add

    def took(ranks: int, engines: int) -> float:
        return together(trains / ranks, answers / (engines * each))

    tried = [(ranks, (count - ranks) // each // nodes * nodes) for ranks in range(rank, count, rank)]
    best = min((one for one in tried if one[1]), key=lambda one: took(*one), default=(trainer.ranks, engine.engine_num))
    share = took(*best) / (took(trainer.ranks, engine.engine_num) or 1.0)
    return [("GPUs", f"training and answering would take about {share:.0%} of the time with trainer.ranks={best[0]} "
                     f"explorer.rollout_model.engine_num={best[1]}, by what a GPU did in {source}")] if (
                         0 < share <= 0.9) else []


def compared(before: Iterable[tuple[Stage, str, Expected | None]]) -> Iterator[str]:
    """Yields what each stage that is complete now took, and what was expected.

    before: stage, sentence, `Expected` each."""
    for stage, _, found in before:
        if found and files.is_complete(stage.directory):
            place = Path(stage.directory)
            steps = tables.read_steps(place, "steps", tables.steps_present(place, "steps"))
            took = duration(sum(one.seconds for one in steps))
            whole = duration(files.read_json(place / files.MANIFEST)["seconds"])
            yield f"{stage.name}: its steps took {took}, expected were {duration(found.seconds)}; {whole} with all else"
