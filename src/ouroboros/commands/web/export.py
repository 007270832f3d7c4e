"""Writes the page of a run to a directory, to be opened from disk: what the server would answer, as one file.

All curves and scores, and of the rollouts of each stage a sample: as many of each outcome, spread over the steps.
"""

import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np

from ouroboros.commands.web import curves, details, distributions, overview, rollouts
from ouroboros.commands.web.app import STATIC, page
from ouroboros.commands.web.rollouts import Address, Wanted
from ouroboros.pipeline.results import doctor, sweep_view
from ouroboros.pipeline.results.query import plain
from ouroboros.pipeline.results.view import View
from ouroboros.pipeline.store import tables
from ouroboros.pipeline.store.errors import DataError

EACH = 40  # rows of each outcome of a stage
STEPS = 24  # of a stage, evenly spaced, that the sample is taken from


def write(root: Path, name: str | None, out: Path) -> str:
    """Writes the page of a run; returns where it is, and what it holds, in a sentence. Raises DataError for a
    directory that has files, and for a sweep."""
    shown = sweep_view.find(root, name)
    if not isinstance(shown, View):
        raise DataError(f"{shown.run} is a sweep; name one of its points.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"--export {out}: needed a new or empty directory.")
    data = dict(_answers(root, shown))
    shutil.copytree(STATIC, out / "static", ignore=shutil.ignore_patterns("*.html", "studio*"))
    text = json.dumps(plain(data), allow_nan=False, ensure_ascii=True).replace("</", "<\\/")
    (out / "static" / "data.js").write_text(f"window.OURO_DATA = {text};\n", encoding="utf-8")
    (out / "index.html").write_text(page("data.js"), encoding="utf-8")
    rows = sum(len(found) for key, found in data.items() if key.startswith("rows "))
    return f"{out / 'index.html'}: {shown.run}, with {rows:,} sampled rollouts"


def address(name: str, **given: str) -> str:
    """Returns the address of a request as basics.js makes it, with a browser's URLSearchParams."""
    return f"api/{name}?{urlencode(given).replace('~', '%7E').replace('%2A', '*')}"


def _answers(root: Path, run: View) -> Iterator[tuple[str, Any]]:
    """Yields the address of each request of the page, and its answer."""
    yield address("runs"), [one for one in overview.runs(root) if one["run"] == run.run]
    shown = overview.run(run)
    for stage in shown["stages"]:  # the page may be passed on: it says nothing of this machine
        stage |= {"directory": Path(stage["directory"]).name, "process": None}
    yield address("run", run=run.run), shown
    yield address("doctor", run=run.run), doctor.rows(doctor.of_run(run))
    yield address("scores", run=run.run), overview.scores(run)
    yield address("columns", run=run.run), (columns := curves.columns(run))
    yield address("distributions", run=run.run), distributions.of_run(run)
    for column in columns:
        for axis in curves.AXES:
            yield (address("curves", run=run.run, column=column["name"], axis=axis),
                   curves.of_run(run, column["name"], axis))
    for stage in run.stages:
        for table in rollouts.KEYS:
            rows = sample(stage.directory, table)
            if not rows:
                continue
            for row in rows:
                found = details.of_row(run, stage, table, Address.read(row["row"]))
                row["trained_in"] = [one["train_step"] for one in found.get("trained") or ()]
                yield address("row", run=run.run, stage=stage.name, table=table, row=row["row"]), found
            yield f"rows {run.run} {stage.name} {table}", rows


def sample(stage: Path, table: str) -> list[dict[str, Any]]:
    """Returns rows of a stage, at most EACH of every outcome (status, accuracy, or else the sign of the reward), spread
    over STEPS of its steps; in order of step and place."""
    steps = tables.steps_present(stage, table)
    if not steps:
        return []
    chosen = sorted({steps[at] for at in np.linspace(0, len(steps) - 1, STEPS).round().astype(int)})
    outcomes = defaultdict(list)
    for step in chosen:
        start: Address | None = Address(step, 0)
        while start:
            found = rollouts.page(stage, table, Wanted(steps=(step, step)), start, count=1000)
            for row in found["rows"]:
                outcomes[_outcome(row)].append(row)
            start = found["next"] and Address.read(found["next"])
    kept = [rows[at] for rows in outcomes.values()
            for at in sorted({int(at) for at in np.linspace(0, len(rows) - 1, EACH).round()})]
    return sorted(kept, key=lambda row: (row["step"], int(row["row"].partition(":")[2])))


def _outcome(row: dict[str, Any]) -> tuple:
    if row["status"] != "ok":
        return (row["status"],)
    if row["accuracy"] is not None:
        return ("solved", row["accuracy"] >= 1)
    return ("rewarded", row["reward"] is not None and row["reward"] > 0)


