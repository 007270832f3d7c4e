"""`ouro export`: the model of a run as a directory to give away, with a model card made of the run's provenance.

The model of a training stage is a Hugging Face directory already, of LoRA with the adapter merged into its weights. It
is copied here, after its files were compared with their hashes, and README.md is written next to it.
"""

import json
import logging
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ouroboros.pipeline.job.inputs import require_intact
from ouroboros.pipeline.job.progress import interval, is_reward
from ouroboros.pipeline.plan import repositories
from ouroboros.pipeline.results import charts, difference, learnt
from ouroboros.pipeline.results.page import render
from ouroboros.pipeline.results.policies import single
from ouroboros.pipeline.results.sweep_view import SweepView
from ouroboros.pipeline.results.view import Node, View
from ouroboros.pipeline.settings import secrets
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import reward_functions
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.store import files, tables
from ouroboros.pipeline.store.checkpoints import model_name, write_dtype
from ouroboros.pipeline.store.errors import DataError, nearest

CARD = "README.md"  # what the hub shows of a model repository
CURVE = "curve.png"
MODEL = "model"
LICENCE = re.compile(r"---\n(?:.*\n)*?license: *(\S+) *\n(?:.*\n)*?---\n")  # in the card of the base model
# settings that the card has, besides those of the algorithm
TOLD = re.compile(r"algorithm\..*|synchronizer\.sync.*|seed|buffer\.(batch_size|train_batch_size|total_\w+)|"
                  r"model\.(max_\w+|temperature|top_\w|min_p)")
# a prompt whose task has its question in it, the longest first; of a stage without rollouts, from its evaluations
PROMPT = """SELECT replace(prompt, question, '{question}') FROM (
    SELECT stage, task_id, prompt FROM experience WHERE turn = 0 UNION ALL SELECT model, task_id, prompt FROM samples)
    AS given JOIN tasks USING (task_id) WHERE given.stage = ? AND question <> '' AND contains(prompt, question)
    ORDER BY length(question) DESC, prompt LIMIT 1"""
CACHED = re.compile(r".*/datasets--(.+?)--(.+?)/snapshots/(\w{12})\w*")  # rows in the cache of huggingface_hub


def choose_stage(view: View, name: str | None) -> Node:
    """Returns the training stage of that name, or the last one. Raises DataError where it is not complete: the model of
    an earlier one is no model of the run, unless it is asked for."""
    trained = {one.name: one for one in view.stages if one.kind.trains}
    able = [one.name for one in trained.values() if files.is_complete(one.directory)
            and (one.directory / MODEL).is_dir()]
    wanted = name or next(reversed(trained), None)
    if wanted in able:
        return trained[wanted]
    which = f"no complete training stage{f' {wanted!r}' * bool(wanted)}.{nearest(name, able) if name else ''}"
    raise DataError(f"{view.run} has {which} Those with a model, for --stage: {', '.join(able) or 'none'}. `ouro "
                    "status` shows how far the run is.")


def export(shown: View | SweepView, out: Path, stage_name: str | None = None, push: str | None = None) -> Iterator[str]:
    """Writes the model of a training stage with its card to a new directory; yields a line for each thing done.

    push: `org/name` on the Hugging Face hub, to which it is then uploaded. Raises DataError for a directory that exists
    or a run without such a stage, ModelError for damaged weights, ConfigError for a name that is none.
    """
    repository = push and repositories.require_name(push)
    view = single(shown)
    stage = choose_stage(view, stage_name)
    if out.exists():
        raise DataError(f"{out} exists; needed a new directory.")
    # what another such stage would read of it
    require_intact(stage.kind, {"model": stage.directory}, str(stage.directory.parents[1]), "hash",
                   logging.getLogger(__name__))
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # of a killed export
    try:
        with files.explained(out):
            shutil.copytree(stage.directory / MODEL, temporary, copy_function=shutil.copyfile)
            said = card(view, stage, write_dtype(temporary))
            (temporary / CARD).write_text(said, encoding="utf-8")
            if curve := _curve(stage):
                draw(temporary / CURVE, *curve)
            temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    yield f"{out}: the model of stage {stage.name} ({stage.directory.name}), with its card {CARD}"
    if repository:
        yield f"pushed to {repositories.push(repository, out)}"


def card(view: View, stage: Node, dtype: str) -> str:
    """Returns the model card: metadata of the hub in YAML, then what trained the model, on what, and its scores.
    dtype: of the weights; the command for vLLM names it, since vLLM rounds float32 by default."""
    return render("model_card.md.j2", content(view, stage) | {"dtype": dtype})


def content(view: View, stage: Node) -> dict[str, Any]:
    """Returns what the card says; secrets are masked."""
    made = files.read_json(stage.directory / files.MANIFEST)
    line = [*_line(view, stage)]
    frozen = {one.name: files.read_json(one.directory / "stage.json") for one in line}
    settings, base = {name: Config.of_stage(one["kind"], one["config"]) for name, one in frozen.items()}, _base(frozen)
    return {
        "run": view.run, "stage": stage.name, "base": base and model_name(base), "made": made,
        "licence": _licence(base), "prompt": _prompt(view, stage), "column": (curve := _curve(stage)) and curve[0],
        "curve": CURVE, "settings": {key: json.dumps(value) for key, value in difference.flatten(
            secrets.mask(frozen[stage.name]["config"])).items() if TOLD.fullmatch(key) and value not in (None, {}, [])},
        "hub": list(dict.fromkeys(pin for one in frozen.values() for pin in one.get("hub", ()))),
        "stages": [{"name": one.name, "kind": str(one.kind), "identity": one.directory.name,
                    "algorithm": settings[one.name].algorithm.algorithm_type if one.kind.trains else ""}
                   for one in line],
        "four_bits": at(settings[stage.name], "model.load_in_4bit"),
        "data": _data(frozen), "rewards": _rewards(line, settings),
        "command": shlex.join(["ouro", "run", *map(secrets.typed, files.read_json(view.path / View.PLAN).get(
            "overrides", []))]),
        "scores": [{"taskset": one.taskset, "metric": one.metric, "words": interval(one), "tasks": one.tasks,
                    "runs": one.runs, "share": not is_reward(one.metric), "value": one.value}
                   for one in learnt.scores(view) if one.model == stage.directory.name],
        "learnt": [change.words() for change in learnt.changes(view) if change.last.model == stage.directory.name],
    }


def _line(view: View, stage: Node) -> Iterator[Node]:
    """Yields the stages that the model depends on, itself last, in the order of the run."""
    by_identity = {one.directory.name: one for one in view.stages}
    needed, waiting = {stage.directory.name}, [stage]
    while waiting:
        inputs = files.read_json(waiting.pop().directory / "stage.json")["inputs"].values()
        new = {*map(os.path.basename, inputs)} & {*by_identity} - needed
        needed |= new
        waiting += [by_identity[name] for name in new]
    yield from (one for one in view.stages if one.directory.name in needed)


def _base(frozen: dict[str, dict[str, Any]]) -> Path | None:
    """Returns the directory of the model that the first stage began with; None where a stage of the line made it.
    frozen: the stages' stage.json."""
    made = {f"{name}-{one['identity']}" for name, one in frozen.items()}
    given = (one["inputs"].get(role) for one in frozen.values() for role in ("base", "model"))
    return next((Path(path) for path in given if path and os.path.basename(path) not in made), None)


def _licence(base: Path | None) -> str | None:
    """Returns what the card of a base model names as its licence; None where it has no such card."""
    card = base / CARD if base else None
    found = LICENCE.match(card.read_text(encoding="utf-8", errors="replace")) if card and card.is_file() else None
    return found and found[1]


def _prompt(view: View, stage: Node) -> str | None:
    """Returns a prompt of the model with `{question}` in place of what a task asks."""
    session = tables.connect((view.run, one.directory) for one in view.stages)
    found = session.execute(PROMPT, [stage.directory.name]).fetchone()
    return found and found[0]


def _curve(stage: Node) -> tuple[str, tuple[int], tuple[float]] | None:
    """Returns the mean reward by step of a stage, else the loss: its column, steps and values."""
    steps = tables.read_steps(stage.directory, "steps", tables.steps_present(stage.directory, "steps"))
    for column in ("reward", "loss"):
        if points := [(one.step, value) for one in steps if (value := getattr(one, column)) is not None]:
            return column, *zip(*points, strict=True)
    return None


def draw(path: Path, title: str, x: Sequence[float], y: Sequence[float]) -> None:
    """Draws a metric by step to a PNG file: its points and their smoothed line."""
    figure, axes = charts.blank(False, title)
    axes.grid(axis="y", color="0.9")
    axes.plot(x, y, ".", color="C0", alpha=0.5)
    axes.plot(x, charts.smooth(np.array(y), max(len(y) / 40, 0.1)), color="C0")
    figure.savefig(path, dpi=150)


def _data(frozen: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    """Returns name and path of each set of rows that the model learnt from. frozen: the stages' stage.json."""
    configs = [one["config"] for one in frozen.values()]
    found = [one for config in configs for one in _sets(config.get("buffer"))]
    raw = [config.get("data_processor", {}).get("task_pipeline", {}) for config in configs]
    found += [("inputs", path) for one in raw for path in one.get("inputs") or ()]
    found += [("generator", one["generator"]) for one in raw if one.get("generator")]
    return [{"name": name, "path": CACHED.sub(r"hf://datasets/\1/\2@\3", path)} for name, path in dict.fromkeys(found)]


def _sets(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields name and path of each set of rows in settings, without those of evaluations."""
    if isinstance(value, list):
        for one in value:
            yield from _sets(one, name)
    elif isinstance(value, dict) and name != "eval_tasksets":
        if value.get("path"):
            yield value.get("name") or name, value["path"]
        for key, below in value.items():
            yield from _sets(below, key)


def _rewards(line: list[Node], settings: dict[str, Config]) -> list[str]:
    explored = [settings[one.name].buffer.explorer_input for one in line if one.kind.explores]
    return list(dict.fromkeys(name for source in explored for one in (source.tasksets or [source.taskset])
                              for name in reward_functions(one, source)))
