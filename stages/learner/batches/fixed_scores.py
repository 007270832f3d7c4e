"""Log-probs of a model that never changes: a column made once a row, and kept in a table.

Two models stay as they are while a stage trains: the reference, whose weights the stage began with
(stages/learner/reference.py), and a teacher (stages/learner/teacher.py). What such a model says of a row never changes
either: `<table>/step=…` holds it, and a resumed stage reads what is there.
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
    """What one model says of the rows of one stage. Its methods are collective."""

    def __init__(self, context: Context, digest: Callable[[], str], process: Process, score: Callable, table: str,
                 column: str):
        """digest: gives the hash of its weights. score: rows -> log-probs [N] of the action tokens of each.

        table: name of the table that keeps them; column: what a row calls them.
        """
        self.context, self.process, self.score, self.table, self.column = context, process, score, table, column
        self.hash = process.first(digest() if process.rank == 0 else None)
        self.held: dict[int, dict[str, np.ndarray]] = {}  # origin -> row id -> [N]

    def add(self, rows: list[Row], origins: Sequence[int]) -> None:
        """Gives every row its column [R].

        origins: of each row, the step whose file holds it; all rows of an origin come together.
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
        """What the file holds; None when there is none, or of another model."""
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
