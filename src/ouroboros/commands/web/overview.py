"""What the page says of runs: their states, stages, scores, and the machine."""

import os
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from ouroboros.commands.web import curves
from ouroboros.commands.web.rollouts import KEYS
from ouroboros.pipeline.results import compare, notes, view
from ouroboros.pipeline.results.query import plain
from ouroboros.pipeline.results.view import Node, View
from ouroboros.pipeline.store import files, tables
from ouroboros.pipeline.store.errors import OuroError

RECENT = 20  # steps whose median says how long the next ones take


def runs(root: Path) -> list[dict[str, Any]]:
    """Returns every run, the one launched last first: `run`, `launched` (seconds since 1970), `stages`, `complete`, and
    `state`: running, complete, failed or waiting; `changed`, when a file of a stage that is not complete last was."""
    return [_brief(one) for one in view.views(root)]


def _brief(run: View) -> dict[str, Any]:
    word, complete = view.state_of_run(run)
    return {"run": run.run, "launched": run.launched / 1e9, "stages": len(run.stages), "complete": complete,
            "state": word, "changed": max(map(_changed, run.stages), default=0)}


def _changed(stage: Node) -> int:
    """Returns when an entry of a stage's directory was written last, nanoseconds since 1970; 0 of a complete stage. A
    step that is written changes the directory of its table."""
    with suppress(FileNotFoundError):  # not there yet, or an entry was replaced meanwhile: the next call tells
        if not files.is_complete(stage.directory):
            return max((entry.stat().st_mtime_ns for entry in os.scandir(stage.directory)), default=0)
    return 0


def table(root: Path) -> list[dict[str, Any]]:
    """Returns what `runs` does, with `tags`, `note`, `settings`, in which the runs differ, and `scores`: evaluation set
    -> the newest sampled `metric` with its `value`, `low` and `high`. A run without a configuration has no settings."""
    shown = view.views(root)
    known = [one for one in shown if (one.path / "config.yaml").exists()]
    differs = dict(zip((one.run for one in known), compare.what_differs([], known), strict=True))
    return [_brief(one) | _notes(one) | {"settings": differs.get(one.run, {}), "scores": {
        score.taskset: {name: getattr(score, name) for name in ("metric", "value", "low", "high")}
        for stage in one.stages for step in tables.steps_present(stage.directory, "scores")[-1:]
        for score in tables.read_scores(stage.directory, step) if score.metric in compare.SAMPLED}} for one in shown]


def _notes(run: View) -> dict[str, Any]:
    with suppress(OuroError):  # of a damaged file `ouro note` tells; the other runs are shown
        return notes.read(run)
    return {"tags": [], "note": ""}


def run(shown: View) -> dict[str, Any]:
    """Returns the stages of a run in executable order, with what they read and how far they are."""
    planned = files.read_json(shown.path / "plan.json")["stages"]
    names = {one["directory"]: one["name"] for one in planned}
    inputs = {one["name"]: sorted({names[place] for place in one["inputs"].values() if place in names})
              for one in planned}
    return {"run": shown.run, "stages": [_stage(one, inputs.get(one.name, [])) for one in shown.stages]}


def _stage(stage: Node, inputs: list[str]) -> dict[str, Any]:
    found = view.state(stage)
    word, _, reached = found.state.partition(", ")
    return {"name": stage.name, "kind": stage.kind.name, "inputs": inputs, "state": word, "reached": reached,
            "seconds": found.seconds, "latest": found.latest, "problem": found.problem, "warning": found.warning,
            "note": found.note, "doing": list(found.doing), "directory": str(stage.directory),
            "process": found.process and str(found.process), **(_pace(stage) if word == "running" else {}),
            "tables": [table for table in KEYS if (stage.directory / table).is_dir()]}


def _pace(stage: Node) -> dict[str, Any]:
    """Returns `step_seconds`, the median of the last steps, and `left_seconds`, of the steps that are left."""
    each, total = _step_seconds(stage), stage.directory / "total.json"
    if each is None or not total.exists():
        return {}
    done = curves.read(stage.directory, "steps").steps[-1]
    return {"step_seconds": each, "left_seconds": each * (files.read_json(total)["total_steps"] - done)}


def _step_seconds(stage: Node) -> float | None:
    seconds = curves.read(stage.directory, "steps").columns.get("seconds", [])[-RECENT:]
    return median(seconds) if seconds else None


def paces(root: Path) -> dict[str, dict[str, Any]]:
    """Returns of each name of a stage the `run` that had its steps last, and `step_seconds`, their median there; files
    that cannot be read are passed over, as they do not concern a recipe."""
    found: dict[str, dict[str, Any]] = {}
    for run in view.views(root)[:RECENT]:
        for stage in run.stages:
            with suppress(OuroError, OSError):
                if stage.name not in found and (seconds := _step_seconds(stage)) is not None:
                    found[stage.name] = {"run": run.run, "step_seconds": seconds}
    return found


def scores(shown: View) -> list[dict[str, Any]]:
    """Returns every score of a run, those on the way of a training stage too: the columns of `scores`, and `of`, the
    stage that evaluated."""
    return [{"of": stage.name} | {name: plain(getattr(score, name)) for name in score.__slots__}
            for stage in shown.stages for step in tables.steps_present(stage.directory, "scores")
            for score in tables.read_scores(stage.directory, step)]
