"""Sudoku of 4x4 or 9x9 cells: every row, column and box has every digit once.

A full grid is drawn by permuting a known one; digits are taken away in random order while the solution stays the only
one, which a search by the cell with the fewest candidates proves.
"""

import itertools
import json
import random
from collections.abc import Iterator
from functools import cache

from ouroboros.operators.worlds.rows import Game, call, games
from ouroboros.pipeline.settings.arguments.worlds import Sudoku as Arguments
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.records import RawTask

DEFAULTS = Arguments.model_construct()
BOXES = {4: 2, 9: 3}  # cells in a row -> those in a row of a box

Grid = list[int]  # digits row by row, 0 where there is none


def read(text: str) -> Grid:
    """A grid such as `1.34 34.. .... 4321`. Raises DataError for a text that is none."""
    size = len(text.split())
    digits = [int(one) if one.isdecimal() else 0 for row in text.split() for one in row]
    if size not in BOXES or any(len(row) != size for row in text.split()) or max(digits) > size:
        raise DataError(f"'{text[:100]}' is no sudoku; needed 4 rows of 4 or 9 rows of 9 digits, . for none.")
    return digits


def show(grid: Grid) -> str:
    size = _size(grid)
    return " ".join("".join(str(digit or ".") for digit in grid[at:at + size]) for at in range(0, len(grid), size))


def sharing(size: int, at: int) -> dict[str, list[int]]:
    """The cells of the row, column and box of a cell, without itself."""
    box, (row, column) = BOXES[size], divmod(at, size)
    top, left = row - row % box, column - column % box
    groups = {"row": [row * size + c for c in range(size)], "column": [r * size + column for r in range(size)],
              "box": [(top + r) * size + left + c for r in range(box) for c in range(box)]}
    return {name: [cell for cell in cells if cell != at] for name, cells in groups.items()}


def _size(grid: Grid) -> int:
    return round(len(grid) ** 0.5)


@cache
def _peers(size: int, at: int) -> frozenset[int]:
    """All cells that `sharing` names."""
    return frozenset().union(*sharing(size, at).values())


def seen(grid: Grid, at: int) -> str:
    """The digits of the row, column and box of a cell, in order, such as `134`."""
    return "".join(map(str, sorted({grid[one] for one in _peers(_size(grid), at)} - {0})))


def place(grid: Grid, at: int, digit: int) -> str:
    """Writes a digit into a cell and returns the grid as text; returns which rule it breaks, and writes nothing."""
    for name, cells in sharing(_size(grid), at).items():
        if any(grid[one] == digit for one in cells):
            return f"{digit} is already in the {name}"
    grid[at] = digit
    return show(grid)


def solutions(grid: Grid) -> Iterator[Grid]:
    """Every full grid that agrees with a grid, by depth-first search."""
    size = _size(grid)
    return _search(list(grid), size, [sorted(_peers(size, at)) for at in range(len(grid))])


def _search(grid: Grid, size: int, peers: list[list[int]]) -> Iterator[Grid]:
    open_cells = [(at, set(range(1, size + 1)).difference(grid[one] for one in peers[at]))
                  for at, digit in enumerate(grid) if not digit]
    if not open_cells:
        yield list(grid)
        return
    at, candidates = min(open_cells, key=lambda one: len(one[1]))
    for digit in sorted(candidates):
        grid[at] = digit
        yield from _search(grid, size, peers)
    grid[at] = 0


def is_unique(grid: Grid) -> bool:
    return len(list(itertools.islice(solutions(grid), 2))) == 1


def sudoku(seed: int, tasks: int, demonstrations: int, size=DEFAULTS.size, blanks=DEFAULTS.blanks,
           guesses=DEFAULTS.guesses) -> Iterator[RawTask]:
    """Puzzles with `blanks` empty cells, and demonstrations that fill them from the top, and look before each digit.

    A share `guesses` of the demonstrations does not look: it draws digits at random, and ends at the first that breaks
    a rule.
    """
    def draw(source: random.Random) -> Game:
        grid = _full(source, size)
        puzzle = _thinned(source, grid, blanks)
        while puzzle.count(0) < blanks:
            grid = _full(source, size)
            puzzle = _thinned(source, grid, blanks)
        answer = json.dumps({"puzzle": show(puzzle), "solution": show(grid)})
        return Game(show(puzzle), answer, _played(source, puzzle, grid, guesses))

    return games("sudoku", seed, tasks, demonstrations, draw)


def _full(source: random.Random, size: int) -> Grid:
    """A full grid: the cyclic one with digits, and lines within and among boxes, permuted."""
    box, digits = BOXES[size], source.sample(range(1, size + 1), size)

    def lines() -> list[int]:
        bands = source.sample(range(size // box), size // box)
        return [band * box + line for band in bands for line in source.sample(range(box), box)]

    rows, columns = lines(), lines()
    return [digits[(box * (r % box) + r // box + c) % size] for r in rows for c in columns]


def _thinned(source: random.Random, grid: Grid, blanks: int) -> Grid:
    """A grid with as many blanks as leave one solution, at most `blanks`."""
    puzzle = list(grid)
    for at in source.sample(range(len(grid)), len(grid)):
        if puzzle.count(0) == blanks:
            break
        puzzle[at] = 0
        if not is_unique(puzzle):
            puzzle[at] = grid[at]
    return puzzle


def _played(source: random.Random, puzzle: Grid, grid: Grid, guesses: float) -> list[tuple[str, str]]:
    size, filled, turns = _size(grid), list(puzzle), []
    guessing = source.random() < guesses
    for at in (one for one, digit in enumerate(puzzle) if not digit):
        cell = {"row": at // size + 1, "column": at % size + 1}
        if not guessing:
            turns.append((call("look", **cell), seen(filled, at)))
        digit = source.randint(1, size) if guessing else grid[at]
        turns.append((call("place", **cell, digit=digit), place(filled, at, digit)))
        if not filled[at]:
            break
    return turns
