"""Games of textarena for one player: `ouro fetch textarena`, then tasks of textarena://GAME (docs/environments.md)."""

import importlib
import json
import random
import sys

from ouroboros.pipeline.store import packages
from ouroboros.workflows.protocol.tools import Environment, Situation


class TextGame(Environment):
    """The truth of a task is `{"game": name, "seed": number}`. accuracy: the game's reward, from 0 to 1."""

    idempotent = True

    @classmethod
    def check(cls) -> None:
        _textarena()

    def reset(self, task: Situation) -> str:
        truth = json.loads(task.answer)
        random.seed(truth["seed"])
        self._game = _textarena().make(truth["game"])
        self._game.reset(num_players=1, seed=truth["seed"])
        self._ended = False
        return self._shown()

    def move(self, text: str) -> str:
        """Makes a move, written as the game asks for it, such as [3]; returns what the game shows then."""
        if self._ended:
            return "the game is over"
        self._ended, _ = self._game.step(text)
        return "the game is over" if self._ended else self._shown()

    def reward(self) -> dict[str, float]:
        rewards = self._game.state.rewards if self._ended else None
        return {"accuracy": min(max(float((rewards or {}).get(0, 0.0)), 0.0), 1.0)}

    def _shown(self) -> str:
        return str(self._game.get_observation()[1])


def _textarena():
    """The package, which only processes of the game import. Raises DataError where it is not fetched."""
    place = str(packages.folder("textarena"))
    if place not in sys.path:
        sys.path.append(place)
    return importlib.import_module("textarena")
