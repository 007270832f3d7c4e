"""Log-probs of a model with fixed weights: computed once per row and cached in a table.

Two models do not change during a stage: the reference, which is the stage's initial model
(stages/learner/reference.py), and a teacher (stages/learner/teacher.py). Their log-probs of a row are stored in
`<table>/step=…`, and a resumed stage reads them from there.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pipeline.job.context import Context
from pipeline.store import records, tables
from pipeline.store.errors import DataError
from stages.learner.engine.packing import Row
from stages.learner.engine.zero import Process


class FixedScores:
    """Cached log-probs of one fixed model for the rows of a stage. Its methods are collective."""

    def __init__(self, context: Context, digest: Callable[[], str], process: Process, score: Callable, table: str,
                 column: str):
        """digest: returns the hash of its weights. score: rows -> log-probs [N] of each row's action tokens.

        table: name of the cache table; column: name of the row column.
        """
        self.context, self.process, self.score, self.table, self.column = context, process, score, table, column
        self.hash = process.first(digest() if process.rank == 0 else None)
        self.held: dict[int, dict[str, np.ndarray]] = {}  # origin -> row id -> [N]

    def add(self, rows: list[Row], origins: Sequence[int]) -> None:
        """Adds the column [R] to every row.

        origins: for each row, the step whose file holds it; all rows of an origin must be passed together.
        """
        self.held = {origin: values for origin, values in self.held.items() if origin in set(origins)}
        for origin in sorted(set(origins)):
            of_origin = [row for row, its in zip(rows, origins, strict=True) if its == origin]
            if origin not in self.held:
                self.held[origin] = self._known(origin) or self._score(origin, of_origin)
            for row in of_origin:
                if row.id not in self.held[origin]:
                    raise DataError(f"{self._file(origin)} has no row {row.id}, which is to be trained on. Delete it, "
                                    "and run the same command again: it is then made anew.")
                row.columns[self.column] = row.spread(self.held[origin][row.id])

    def _file(self, origin: int) -> Path:
        return tables.step_file(self.context.directory, self.table, origin)

    def _known(self, origin: int) -> dict[str, np.ndarray] | None:
        """The cached columns; None when there is no file, or it belongs to another model."""
        if not self.process.first(self._file(origin).exists()):
            return None
        found = tables.read(self._file(origin), records.FixedLogprobs).to_pydict()
        if set(found["model_hash"]) != {self.hash}:
            return None
        return {id_: np.array(values, np.float32)
                for id_, values in zip(found["experience_id"], found["logprobs"], strict=True)}

    def _score(self, origin: int, rows: list[Row]) -> dict[str, np.ndarray]:
        scored = self.score(rows)
        if self.process.rank == 0:
            made = [records.FixedLogprobs(row.id, self.hash, values) for row, values in zip(rows, scored, strict=True)]
            tables.write(self._file(origin), records.FixedLogprobs, made)
        return {row.id: values for row, values in zip(rows, scored, strict=True)}
