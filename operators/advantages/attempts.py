"""Which rows of a batch are one attempt: an attempt of several turns may be several rows, in the order of its turns.

Advantages that compare rewards count an attempt once, and returns run through all of its rows. Each player of an
attempt of several has another group, and counts as an attempt.
"""

from __future__ import annotations

from dataclasses import dataclass

from ouroboros.operators.advantages.query import require
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.lazy import np, pa

KEYS = (("position", "group_id"), ("position",), ("group_id", "run_index"))  # each names an attempt; else a row is one


@dataclass(frozen=True)
class Attempts:
    """B rows of A attempts.

    of: [B] attempt of each row, numbered from 0 in the order of their first rows. order: [B] the rows, sorted by
    attempt and, within it, by turn.
    """

    of: np.ndarray
    order: np.ndarray

    @property
    def last(self) -> np.ndarray:
        """[A] the last row of each attempt: its reward is the attempt's."""
        return self.order[np.flatnonzero(np.diff(self.of[self.order], append=-1))]

    def spread(self, batch: pa.Table, found: pa.Table) -> pa.Table:
        """The advantages of the last rows, given to every row of their attempts; `found` may repeat or lack some."""
        if len(self.last) == len(batch):
            return found
        ids = batch["experience_id"].to_pylist()
        attempt_of = {ids[row]: attempt for attempt, row in enumerate(self.last)}
        members = np.split(self.order, np.flatnonzero(np.diff(self.of[self.order])) + 1)
        chosen = [members[attempt_of[id_]] for id_ in found["experience_id"].to_pylist()]
        places = np.repeat(np.arange(len(chosen)), [len(rows) for rows in chosen])
        rows = np.concatenate([np.zeros(0, np.int64), *chosen])
        return pa.table({"experience_id": batch["experience_id"].take(pa.array(rows, pa.int64())),
                         "advantage": found["advantage"].take(pa.array(places, pa.int64()))})


def attempts(batch: pa.Table) -> Attempts:
    """The attempts of a batch. Raises DataError where the order of an attempt's rows is unknown."""
    of, turns = _numbers(batch), np.zeros(len(batch), np.int64)
    if len(np.unique(of)) < len(batch):
        require(batch, "turn")
        turns = batch["turn"].to_numpy()
    order = np.lexsort((turns, of))
    twice = np.flatnonzero((np.diff(of[order]) == 0) & (np.diff(turns[order]) == 0))
    if len(twice):
        names = batch["experience_id"].take(pa.array(order[twice[0]: twice[0] + 2])).to_pylist()
        raise DataError(f"rows {names[0]} and {names[1]} are both turn {turns[order[twice[0]]]} of one attempt; needed "
                        "another turn in each row of an attempt.")
    return Attempts(of, order)


def _numbers(batch: pa.Table) -> np.ndarray:
    """[B] the attempt of each row."""
    key = next((key for key in KEYS if set(key) <= set(batch.column_names)), None)
    if key is None:
        return np.arange(len(batch))
    require(batch, *key)
    numbers: dict[tuple, int] = {}
    named = zip(*(batch[name].to_pylist() for name in key), strict=True)
    return np.array([numbers.setdefault(name, len(numbers)) for name in named], np.int64)
