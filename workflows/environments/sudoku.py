"""Sudoku (operators/worlds/sudoku.py) as an environment."""

import json

from ouroboros.operators.worlds import sudoku as rules
from ouroboros.workflows.protocol.tools import Environment


class Sudoku(Environment):
    """A grid such as `1.34 34.. .... 4321`, to be filled. The truth of a task is `{"puzzle": …, "solution": …}`.

    accuracy: whether the whole grid is right; cells, added to it: the share of empty cells with the right digit. What
    breaks the rules is not written; a digit that is wrong without breaking them is, and may be replaced.
    """

    idempotent = True

    def reset(self, task) -> None:
        found = json.loads(task.answer)
        self._puzzle, self._solution = rules.read(found["puzzle"]), rules.read(found["solution"])
        self._grid, self._size = list(self._puzzle), len(found["puzzle"].split())

    def look(self, row: int, column: int) -> str:
        """Returns the digits that the row, the column and the box of a cell have; rows and columns from 1."""
        return rules.seen(self._grid, self._cell(row, column))

    def place(self, row: int, column: int, digit: int) -> str:
        """Writes a digit into an empty cell, or over one placed before; rows and columns from 1. Returns the grid, or
        which rule the digit breaks."""
        at = self._cell(row, column)
        if not 1 <= digit <= self._size:
            raise ValueError(f"digit {digit}: needed 1 to {self._size}")
        if self._puzzle[at]:
            raise ValueError(f"row {row}, column {column} has the given digit {self._puzzle[at]}")
        return rules.place(self._grid, at, digit)

    def _cell(self, row: int, column: int) -> int:
        for name, value in (("row", row), ("column", column)):
            if not 1 <= value <= self._size:
                raise ValueError(f"{name} {value}: needed 1 to {self._size}")
        return (row - 1) * self._size + column - 1

    def reward(self) -> dict[str, float]:
        blank = [at for at, digit in enumerate(self._puzzle) if not digit]
        right = sum(self._grid[at] == self._solution[at] for at in blank)
        return {"accuracy": float(right == len(blank)), "cells": right / len(blank) if blank else 1.0}
