"""What is counted of all rows of a stage: of each step when its file is first read, and kept while the server runs.

A page that renews itself reads new steps alone, and those that a resumed stage made again.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from ouroboros.commands.web import rollouts
from ouroboros.pipeline.results.query import plain
from ouroboros.pipeline.store import tables

FILES = 64  # that are read at once
TASKS = """SELECT step, task_id, coalesce(avg(reward), 'nan') AS reward, coalesce(avg((accuracy >= 1)::INT), 'nan') AS
    solved FROM rows GROUP BY ALL ORDER BY step"""
Count = Callable[[str, Mapping[int, Path]], dict[int, Any]]
_kept: dict[tuple[Path, str, Count], dict[int, tuple[int, Any]]] = {}
_busy: dict[tuple[Path, str, Count], Lock] = defaultdict(Lock)  # who asks meanwhile waits, and counts nothing twice


def by_step(stage: Path, table: str, count: Count) -> dict[int, Any]:
    """Returns step -> what `count` makes of it, given the table and the files of some steps. Raises DataError for a
    damaged one."""
    with _busy[key := (stage, table, count)]:
        present = {step: tables.step_file(stage, table, step) for step in tables.steps_present(stage, table)}
        written = {step: path.stat().st_mtime_ns for step, path in present.items()}
        before = _kept.get(key, {})
        found = {step: before[step] for step in present if step in before and before[step][0] == written[step]}
        new = [step for step in present if step not in found]
        for chosen in (new[at : at + FILES] for at in range(0, len(new), FILES)):
            with tables.blamed(stage):
                made = count(table, {step: present[step] for step in chosen})
            found |= {step: (written[step], made[step]) for step in chosen}
        _kept[key] = found
        return {step: found[step][1] for step in present}


def _tasks(_: str, paths: Mapping[int, Path]) -> dict[int, dict[str, np.ndarray]]:
    with rollouts.asked([*paths.values()], TASKS) as answer:
        columns = answer.fetchnumpy()  # Arrow's tables would import pandas: a second
    ends = [np.searchsorted(columns["step"], [*paths], side) for side in ("left", "right")]
    return {step: {name: values[first:last] for name, values in columns.items()}
            for step, first, last in zip(paths, *ends, strict=True)}


def of_task(stage: Path, table: str, task_id: str) -> dict[str, list[Any]]:
    """Returns how a task was answered over steps: `x` (the steps that asked it), the mean `reward`, and `solved`, the
    share of responses whose accuracy is 1; null where none has one."""
    found = [(step, at[0], columns) for step, columns in by_step(stage, table, _tasks).items()
             if len(at := np.flatnonzero(columns["task_id"] == task_id))]
    return {"x": [step for step, _, _ in found]} | {
        name: [plain(columns[name][at].item()) for _, at, columns in found] for name in ("reward", "solved")}
