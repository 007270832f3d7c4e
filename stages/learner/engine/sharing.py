"""Rows with the same prompt share it in a micro-batch (`trainer.share_prompts`): its tokens are computed once.

A response then continues a prompt that other responses continue too. Log-probs, loss and gradients are those of
separate rows: a position depends only on the tokens before it, and gradients of a shared prompt add up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from stages.learner.engine.batch import Row


@dataclass(frozen=True, slots=True)
class Segments:
    """Consecutive tokens of a flat micro-batch of T tokens that attend to one another causally.

    bounds: [G + 1] int32, where they begin, and T. contexts: [G] int64, the segment whose tokens all precede those of
    this one, a prompt; -1: none. Segments that continue a prompt follow it.
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

    def members(self, chosen: np.ndarray) -> np.ndarray:
        """Flat positions of the tokens of the chosen segments. chosen: [G] bool."""
        return np.flatnonzero(np.repeat(chosen, self.lengths))

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The segments that are no prompt of others, and the length of the prompt that each continues or 0, [S]."""
        rows = np.setdiff1d(np.arange(len(self.contexts)), self.contexts)
        before = np.where(self.contexts >= 0, self.lengths[self.contexts], 0)
        return rows, before[rows]


@dataclass(frozen=True, slots=True)
class Flat:
    """Rows as one flat sequence. input_ids, positions: [T] int64. last: [S] int64, flat position of the last prompt
    token of each row; first: [S] int64, of its first response token."""

    input_ids: np.ndarray
    positions: np.ndarray
    segments: Segments
    last: np.ndarray
    first: np.ndarray

    def source(self, row: int, acts: np.ndarray) -> np.ndarray:
        """Flat positions whose output predicts response tokens `acts` (from 0) of a row."""
        return np.where(acts == 0, self.last[row], self.first[row] + acts - 1)


def flatten(rows: Sequence[Row], groups: Sequence[int]) -> Flat:
    """Joins rows; those of one group of `groups` [S] share their prompt, which is then followed by the responses."""
    tokens: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    contexts: list[int] = []
    places = np.zeros((2, len(rows)), np.int64)
    end = 0

    def add(more: Sequence[int], begin: int, context: int = -1) -> None:
        nonlocal end
        tokens.append(np.asarray(more, np.int64))
        positions.append(np.arange(begin, begin + len(more)))
        contexts.append(context)
        end += len(more)

    for members in _members(groups):
        prompt = rows[members[0]].prompt_length
        if len(members) == 1:
            places[:, members[0]] = end + prompt - 1, end + prompt
            add(rows[members[0]].tokens, 0)
            continue
        last, context = end + prompt - 1, len(contexts)
        add(rows[members[0]].tokens[:prompt], 0)
        for member in members:
            places[:, member] = last, end
            add(rows[member].tokens[prompt:], prompt, context)
    bounds = np.cumsum([0, *map(len, tokens)]).astype(np.int32)
    return Flat(np.concatenate(tokens), np.concatenate(positions), Segments(bounds, np.array(contexts)), *places)


def groups_of(rows: Sequence[Row], share: bool) -> list[int]:
    """The number of the group of each row: rows with equal prompts are one where they share them."""
    if not share:
        return list(range(len(rows)))
    numbers: dict[bytes, int] = {}
    return [numbers.setdefault(np.asarray(row.tokens[: row.prompt_length], np.int64).tobytes(), len(numbers))
            for row in rows]


def count(rows: Sequence[Row], groups: Sequence[int], indices: Sequence[int]) -> int:
    """Tokens of a micro-batch of these rows."""
    prompts = {groups[i]: rows[i].prompt_length for i in indices}
    return sum(len(rows[i].tokens) - rows[i].prompt_length for i in indices) + sum(prompts.values())


def parts(groups: Sequence[int], unit: int) -> list[list[list[int]]]:
    """Ways to cut rows into lists of indices that stay in one micro-batch: each `unit` rows alone, then 2, 4, ...
    units of a group together, up to whole groups. groups: [R], of which each unit has that of its first row."""
    units = [list(range(i, i + unit)) for i in range(0, len(groups), unit)]
    together = [[units[place] for place in members] for members in _members([groups[one[0]] for one in units])]
    largest, ways, size = max(map(len, together)), [units], 1
    while size < largest:
        size *= 2
        ways.append([list(chain(*members[i : i + size])) for members in together
                     for i in range(0, len(members), size)])
    return ways


def _members(groups: Sequence[int]) -> list[list[int]]:
    """Places of each group, in the order of their first ones."""
    found: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        found.setdefault(group, []).append(place)
    return list(found.values())
