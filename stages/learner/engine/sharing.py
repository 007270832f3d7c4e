"""Rows that begin with the same tokens share them in a micro-batch (`trainer.share_prompts`): a tree of segments.

Responses continue a prompt, forks of a conversation its turns, all tasks a system prompt; a row that is the beginning
of another one is within it. Each segment is computed once. Log-probs, loss and gradients are those of separate rows: a
position depends only on the tokens before it, each row takes its own outputs, and gradients of what is shared add up.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.prefixes import NOTHING, Cost, common_prefix, runs, worthwhile

LEAST = 0.05  # of a batch's tokens, for which any prefix is shared: layers need another graph for it


@dataclass(frozen=True, slots=True)
class Segments:
    """Consecutive tokens of a flat micro-batch of T tokens that attend to one another causally.

    bounds: [G + 1] int32, where they begin, and T. contexts: [G] int64, the segment that each continues, before it;
    -1: none. A segment attends to all of that one, and of those that it continues in turn.
    """

    bounds: np.ndarray
    contexts: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.bounds).astype(np.int64)

    @property
    def continue_others(self) -> bool:
        """Whether any segment continues another one."""
        return bool((self.contexts >= 0).any())

    def tokens(self, chosen: Iterable[int]) -> np.ndarray:
        """Flat positions of the tokens of segments, in their order."""
        return np.concatenate([np.arange(self.bounds[one], self.bounds[one + 1], dtype=np.int64) for one in chosen])

    def chain(self, segment: int) -> list[int]:
        """The segments from the first token of a row to the last one of this segment."""
        found = [segment]
        while (before := int(self.contexts[found[-1]])) >= 0:
            found.append(before)
        return found[::-1]

    def rows(self) -> list[np.ndarray]:
        """Flat positions of the tokens of each segment that no other continues, with all before it."""
        return [self.tokens(self.chain(one)) for one in np.setdiff1d(np.arange(len(self.contexts)), self.contexts)]


@dataclass(frozen=True, slots=True)
class Flat:
    """Rows as one flat sequence. input_ids, positions: [T] int64. places: of each row, [L] flat positions."""

    input_ids: np.ndarray
    positions: np.ndarray
    segments: Segments
    places: list[np.ndarray]


class Prefixes:
    """The rows of a batch in lexicographic order, and the first tokens that neighbours share: of a row that is the
    beginning of the next one all of them. Rows in between decide how much any two share."""

    def __init__(self, rows: Sequence[Row], cost: Cost | None):
        """cost: of sharing (prefixes.py); NOTHING: every common prefix is shared; None: none is."""
        self.rows = rows
        self.lengths = np.array([len(row.tokens) for row in rows], np.int64)
        order, self.shared = range(len(rows)), np.zeros(len(rows) - 1, np.int64)
        if cost is not None:
            tokens = [np.asarray(row.tokens, ">i8") for row in rows]  # whose bytes sort as the numbers do
            order = sorted(order, key=lambda row: (rows[row].pictures, tokens[row].tobytes()))
            self.shared[:] = [common_prefix(tokens[a], tokens[b]) if _alike(rows[a], rows[b]) else 0
                              for a, b in pairwise(order)]
            lengths = self.lengths[order]
            whole = _whole(lengths, self.shared)
            self.shared[whole[:-1]] = worthwhile(lengths[whole], self.shared[whole[:-1]], cost)
            if cost != NOTHING and self.shared.sum() < LEAST * lengths.sum():
                self.shared[:] = 0
        self.rank = np.argsort(order)

    def _ordered(self, indices: Sequence[int]) -> tuple[list[int], np.ndarray]:
        """Some rows in order, [S], and the first tokens that neighbours share, [S - 1]."""
        order = sorted(indices, key=self.rank.__getitem__)
        ranks = self.rank[order]
        return order, np.minimum.reduceat(self.shared[: ranks[-1]], ranks[:-1]) if len(order) > 1 else self.shared[:0]

    def count(self, indices: Sequence[int]) -> int:
        """Tokens of a micro-batch of these rows, at most the sum of those of its parts."""
        if len(indices) < 2:
            return sum(self.lengths[indices].tolist())
        return int(self.lengths[indices].sum() - self._ordered(indices)[1].sum())

    def parts(self, unit: int) -> list[list[list[int]]]:
        """Ways to cut the rows into lists of indices that stay in one micro-batch, neighbours in the tree: each `unit`
        rows alone, then at most 2, 4, ... units together, up to all that share a prefix. Each unit goes by its first
        row."""
        order, shared = self._ordered(range(0, len(self.rows), unit))
        return [[[first + i for first in order[begin:end] for i in range(unit)] for begin, end in way]
                for way in runs(shared)]

    def flatten(self, indices: Sequence[int]) -> Flat:
        """Joins rows in the order of their tree; places of them are in that of `indices`."""
        order, shared = self._ordered(indices)
        lengths = self.lengths[order]
        whole = _whole(lengths, shared)
        before = [0, *shared[whole[:-1]].tolist()]
        tokens, positions, contexts, bounds, path, found = [], [], [], [0], [], {}
        for row, begin, cuts in zip(whole.tolist(), before, _cuts(before, lengths[whole].tolist()), strict=True):
            path = [(end, segment) for end, segment in path if end <= begin]
            for end in cuts:
                contexts.append(path[-1][1] if path else -1)
                path.append((end, len(contexts) - 1))
                tokens.append(np.asarray(self.rows[order[row]].tokens[begin:end], np.int64))
                positions.append(np.arange(begin, end))
                bounds.append(bounds[-1] + end - begin)
                begin = end
            places = np.concatenate([np.arange(bounds[segment], bounds[segment + 1]) for _, segment in path])
            found |= {one: places[: self.lengths[one]] for one in order[len(found) : row + 1]}
        segments = Segments(np.array(bounds, np.int32), np.array(contexts))
        return Flat(np.concatenate(tokens), np.concatenate(positions), segments, [found[one] for one in indices])


def _alike(row: Row, other: Row) -> bool:
    """Whether equal tokens of two rows mean the same: with images those up to the last that was given alone."""
    begin = row.given if row.pictures else 0
    return row.pictures == other.pictures and row.tokens[:begin] == other.tokens[:begin]


def _whole(lengths: np.ndarray, shared: np.ndarray) -> np.ndarray:
    """Those of ordered rows that are not the beginning of the next one. lengths: [S]; shared: [S - 1]."""
    return np.flatnonzero(np.append(shared < lengths[:-1], True))


def _cuts(before: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Where the segments end that begin with each row of a tree, in its tokens. before: the first tokens of each row
    that are in segments of earlier ones."""
    found, ahead = [], []  # ahead: where later rows leave this one, the last on top
    for begin, length in zip(reversed(before), reversed(lengths), strict=True):
        ends = [length]
        while ahead and ahead[-1] > begin:
            ends.append(ahead.pop())
        found.append(ends[::-1])
        if begin and (not ahead or ahead[-1] < begin):
            ahead.append(begin)
    return found[::-1]
