"""Frozen lake (operators/worlds/frozen_lake.py) as an environment; the truth of a task is its lake."""

from typing import Literal

from ouroboros.operators.worlds.frozen_lake import Lake
from ouroboros.workflows.protocol.tools import Environment


class FrozenLake(Environment):
    """A lake such as `PFF FHF FFG`: player, goal, holes, ice. accuracy: whether the goal is reached."""

    idempotent = True

    def reset(self, task) -> None:
        self._lake = Lake(task.answer)

    def move(self, direction: Literal["left", "right", "up", "down"]) -> str:
        """Moves the player P by one cell. A wall stops it, a hole H or the goal G ends the game. Returns the lake."""
        return self._lake.move(direction)

    def reward(self) -> dict[str, float]:
        return {"accuracy": float(self._lake.ended == "goal")}
