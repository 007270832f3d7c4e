"""Curves of the page: columns of the steps of several runs, by step, tokens or seconds.

A stage may have many thousand files of steps: those that were read are kept, until a resumed stage makes them again.
"""

import re
from dataclasses import dataclass, field, fields
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from ouroboros.pipeline.results.charts import thin
from ouroboros.pipeline.results.view import Node, View
from ouroboros.pipeline.store import tables
from ouroboros.pipeline.store.errors import QueryError, nearest
from ouroboros.pipeline.store.records import TABLES

AXES = ("step", "tokens", "seconds")
POINTS = 600  # of a curve; more are averaged in equal bins
FIRST = ("reward", "solve_rate")
GROUPS = {  # of columns, by their names; the first that fits
    "learning": r"reward|solve_rate|loss|.*grad_norm|(critic_)?lr|vf_.*|statistics.*", "lengths": r".*tokens.*",
    "KL and mismatch": r".*kl.*|.*mismatch.*|effective_sample_size|corrected_.*|clip_fraction|routed_.*|probe_.*",
    "entropy": r".*entropy.*", "time": r".*seconds", "memory": r"peak_memory.*|token_budget|compiled_graphs",
    "machine": r"(host|gpu)_.*", "others": r".*",
}
# what a step costs, by axis and table
COSTS = {("tokens", "steps"): ("rollout_tokens", "trained_tokens"), ("seconds", "steps"): ("seconds",),
         ("tokens", "rollouts"): ("tokens",),
         ("seconds", "rollouts"): ("rollout_seconds", "sync_seconds", "other_seconds", "evaluate_seconds",
                                   "wait_seconds")}


@dataclass
class Read:
    """What was read of a table of a stage: its steps, when their files were written (nanoseconds since 1970), and each
    column by name; null is NaN."""

    steps: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    columns: dict[str, list[float]] = field(default_factory=dict)


NO_CURVES = ("step", "start")  # the axis; what is known of the first step of a process alone
_kept: dict[tuple[Path, str], Read] = {}


def read(stage: Path, table: str) -> Read:
    """Returns all steps of a table, ascending. Columns of `statistics` are named statistics.NAME."""
    kept = _kept.get((stage, table), Read())
    present = tables.steps_present(stage, table)
    written = [tables.step_file(stage, table, step).stat().st_mtime_ns for step in present]
    known = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(
        zip(kept.steps, kept.written, strict=True), zip(present, written, strict=True), strict=False)))
    kept = Read(present[:known], written[:known], {name: of[:known] for name, of in kept.columns.items()})
    if new := present[known:]:
        rows = [_numbers(one) for one in tables.read_steps(stage, table, new)]
        names = dict.fromkeys([*kept.columns, *(name for one in rows for name in one)])
        before = [np.nan] * len(kept.steps)
        kept = Read(present, written, {name: [*kept.columns.get(name, before), *(one.get(name, np.nan)
                                                                                   for one in rows)] for name in names})
    _kept[stage, table] = kept
    return kept


def _numbers(row: Any) -> dict[str, float]:
    found = {}
    for one in fields(row):
        value = None if one.name in NO_CURVES else getattr(row, one.name)
        if isinstance(value, dict | list):
            found |= {f"{one.name}.{name}": float(number) for name, number in dict(value).items() if number is not None}
        elif isinstance(value, int | float):
            found[one.name] = float(value)
    return found


def table_of(stage: Node) -> str:
    """The table that has a stage's steps: of the optimizer, or of the explorer alone."""
    return "steps" if stage.kind.trains else "rollouts"


def columns(run: View) -> list[dict[str, Any]]:
    """Returns the columns that have a number in any stage of a run: `name`, `meaning`, `group`, `stages`."""
    found: dict[str, dict[str, Any]] = {}
    for stage in run.stages:
        made = read(stage.directory, table_of(stage))
        meanings = {one.name: one.metadata["doc"] for one in fields(TABLES[table_of(stage)])}
        for name, values in made.columns.items():
            if np.isfinite(values).any():
                meaning = meanings.get(name.partition(".")[0], "")  # of statistics.NAME that of statistics
                group = next(group for group, pattern in GROUPS.items() if re.fullmatch(pattern, name))
                one = found.setdefault(name, {"name": name, "meaning": meaning, "group": group, "stages": []})
                one["stages"].append(stage.name)
    return sorted(found.values(), key=lambda one: ([*GROUPS].index(one["group"]), one["name"] not in FIRST))


def of_run(run: View, column: str, axis: str) -> list[dict[str, Any]]:
    """Returns the curve of each stage of a run that has the column, with the run's name as `run`."""
    return [{"run": run.run, **made} for stage in run.stages if (made := curve(stage, column, axis))]


def curve(stage: Node, column: str, axis: str) -> dict[str, Any] | None:
    """Returns the points of a column of a stage, `x` and `y`; None where it has none.

    axis: step; tokens: rolled out and trained until then, or seconds until then. Raises QueryError for another one.
    """
    if axis not in AXES:
        raise QueryError(f"no axis '{axis}'.{nearest(axis, AXES)} Needed one of {', '.join(AXES)}.")
    table = table_of(stage)
    made = read(stage.directory, table)
    if column not in made.columns or not np.isfinite(made.columns[column]).any():
        return None
    x = np.array(made.steps, float)
    if axis != "step":
        costs = [np.nan_to_num(made.columns[name]) for name in COSTS[axis, table] if name in made.columns]
        x = np.cumsum(np.sum(costs, axis=0)) if costs else x
    x, y = thin(x, np.array(made.columns[column]), POINTS)
    return {"stage": stage.name, "x": x.tolist(), "y": y.tolist()}
