"""Frozen lake: cross a lake from P to G without falling into a hole.

After FrozenLake of Gymnasium (Towers et al. 2024, arXiv:2407.17032; there S, F, H, G), with start and goal anywhere
and ice that is not slippery. A way of the shortest length is drawn first and holes lie next to it, so every lake can be
crossed.
"""

import random
from collections.abc import Iterator

from ouroboros.operators.worlds.rows import Game, call, games
from ouroboros.pipeline.settings.arguments.worlds import FrozenLake as Arguments
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.records import RawTask

DEFAULTS = Arguments.model_construct()
MOVES = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}  # (rows, columns)
PLAYER, GOAL, HOLE, ICE = "PGHF"

Place = tuple[int, int]  # row and column, from 0


class Lake:
    """A lake such as `PFF FHF FFG` (rows), with a player on it. ended: how the game ended, `goal` or `hole`."""

    def __init__(self, text: str):
        """Raises DataError for an invalid text."""
        rows, letters = text.split(), "".join(text.split())
        if {len(row) for row in rows} != {len(rows)} or set(letters) - set("PGHF") or not (
                letters.count(PLAYER) == letters.count(GOAL) == 1):
            raise DataError(f"'{text[:80]}' is no lake; needed as many rows as columns, of one P, one G, H and F.")
        self._cells = {(r, c): letter for r, row in enumerate(rows) for c, letter in enumerate(row)}
        self._size, self.ended = len(rows), ""
        self._place = next(place for place, letter in self._cells.items() if letter == PLAYER)
        self._cells[self._place] = ICE

    def __str__(self) -> str:
        shown = self._cells | {self._place: PLAYER}
        return " ".join("".join(shown[r, c] for c in range(self._size)) for r in range(self._size))

    def move(self, direction: str) -> str:
        """Moves the player; returns the lake, and `wall`, `hole`, `goal` or `over` where it is one."""
        if self.ended:
            return f"{self} over"
        place = _moved(self._place, direction)
        if place not in self._cells:
            return f"{self} wall"
        self._place = place
        self.ended = {GOAL: "goal", HOLE: "hole"}.get(self._cells[place], "")
        return f"{self} {self.ended}".rstrip()


def frozen_lake(seed: int, tasks: int, demonstrations: int, size=DEFAULTS.size, holes=DEFAULTS.holes,
                guesses=DEFAULTS.guesses) -> Iterator[RawTask]:
    """Lakes, and demonstrations of players of whom a share `guesses` moves at random. Question and truth are the lake.

    size: rows and columns. A player at random makes as many moves as the shortest way has, or fewer if the game ends.
    """
    def draw(source: random.Random) -> Game:
        cells = [(r, c) for r in range(size) for c in range(size)]
        start, goal = source.sample(cells, 2)
        way = _way(source, start, goal)
        places = [start]
        for direction in way:
            places.append(_moved(places[-1], direction))
        letters = dict.fromkeys(source.sample([one for one in cells if one not in places], holes), HOLE)
        letters |= {start: PLAYER, goal: GOAL}
        text = " ".join("".join(letters.get((r, c), ICE) for c in range(size)) for r in range(size))
        if source.random() < guesses:
            way = source.choices(list(MOVES), k=len(way))
        return Game(text, text, _played(text, way))

    return games("frozen lake", seed, tasks, demonstrations, draw)


def _moved(place: Place, direction: str) -> Place:
    rows, columns = MOVES[direction]
    return place[0] + rows, place[1] + columns


def _way(source: random.Random, start: Place, goal: Place) -> list[str]:
    """Directions from start to goal, in random order: the shortest way without holes."""
    down, right = goal[0] - start[0], goal[1] - start[1]
    way = ["down" if down > 0 else "up"] * abs(down) + ["right" if right > 0 else "left"] * abs(right)
    return source.sample(way, len(way))


def _played(text: str, way: list[str]) -> list[tuple[str, str]]:
    lake, turns = Lake(text), []
    for direction in way:
        turns.append((call("move", direction=direction), lake.move(direction)))
        if lake.ended:
            break
    return turns
