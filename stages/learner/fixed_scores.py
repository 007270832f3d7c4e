"""Log-probs of a model with fixed weights: computed once per row and cached in a table.

Two models change at intervals or not at all: the reference, the stage's initial model or one that follows the policy
(stages/learner/reference.py), and a teacher (stages/learner/teacher.py). Their log-probs of a row are stored in
`<table>/step=…`, and a resumed stage reads them from there.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.process import Process


class FixedScores:
    """Cached log-probs of one fixed model for the rows of a stage. Its methods are collective."""

    def __init__(self, context: Context, digest: Callable[[], str], process: Process, score: Callable, table: str,
                 column: str, tops: int = 0):
        """digest: returns the hash of its weights. score: rows -> log-probs [N] of each row's action tokens; with tops
        [N, 2 tops + 2]: then the ids of its likeliest tokens, and their log-probs and that of the rest.

        table: name of the cache table; column: name of the row column.
        """
        self.tops = tops
        self.context, self.process, self.score, self.table, self.column = context, process, score, table, column
        self.hash = process.first(digest() if process.rank == 0 else None)
        self.recent: dict[int, dict[str, np.ndarray]] = {}  # of the last rows: explorer step -> row id -> [N]

    def add(self, rows: list[Row]) -> None:
        """Adds the column [R] to every row. All rows of an explorer step must be passed together."""
        by_step: dict[int, list[Row]] = {}
        for row in rows:
            by_step.setdefault(row.origin.step if row.origin else 0, []).append(row)
        self.recent = {step: values for step, values in self.recent.items() if step in by_step}
        for step, of_step in sorted(by_step.items()):
            if step not in self.recent:
                self.recent[step] = self._stored(step) or self._score(step, of_step)
            for row in of_step:
                if row.id not in self.recent[step]:
                    raise DataError(f"{self._file(step)} has no row {row.id}, which is to be trained on. Delete that "
                                    "file and run the same command again; it is then computed again.")
                found = self.recent[step][row.id]
                row.columns[self.column] = row.spread(found[:, 0] if self.tops else found)
                if self.tops:
                    row.columns["teacher_top_ids"] = row.spread(found[:, 1 : self.tops + 1])
                    row.columns["teacher_top_logprobs"] = row.spread(found[:, self.tops + 1 :])

    def _file(self, step: int) -> Path:
        return tables.step_file(self.context.directory, self.table, step)

    def _stored(self, step: int) -> dict[str, np.ndarray] | None:
        """The log-probs by row id; None when there is no file, or it belongs to another model."""
        if not self.process.first(self._file(step).exists()):
            return None
        found = tables.read(self._file(step), records.FixedLogprobs).to_pydict()
        if set(found["model_hash"]) != {self.hash}:
            return None
        if not self.tops:
            return {id_: np.array(values, np.float32)
                    for id_, values in zip(found["experience_id"], found["logprobs"], strict=True)}
        names = ("experience_id", "logprobs", "top_ids", "top_logprobs")
        rows = list(zip(*map(found.get, names), strict=True))
        if any(ids is None or len(ids) != self.tops * len(logprobs) for _, logprobs, ids, _ in rows):
            return None
        return {id_: np.concatenate([np.array(part, np.float32).reshape(len(logprobs), -1)
                                     for part in (logprobs, ids, tops)], axis=1) for id_, logprobs, ids, tops in rows}

    def _score(self, step: int, rows: list[Row]) -> dict[str, np.ndarray]:
        scored = self.score(rows)
        if self.process.rank == 0:
            made = [self._record(row.id, values) for row, values in zip(rows, scored, strict=True)]
            tables.write(self._file(step), records.FixedLogprobs, made)
        return {row.id: values for row, values in zip(rows, scored, strict=True)}

    def _record(self, id_: str, values: np.ndarray) -> records.FixedLogprobs:
        if not self.tops:
            return records.FixedLogprobs(id_, self.hash, values)
        logprobs, ids, tops = np.split(values, [1, self.tops + 1], axis=1)
        return records.FixedLogprobs(id_, self.hash, logprobs[:, 0], ids.astype(np.int32).flatten(), tops.flatten())
