"""Rows of tasks in an environment, and of demonstrations: one row for all replies of a player.

Calls are written as Python, `[move(direction="left")]`, which vLLM's tool parser `pythonic` reads and the chat template
conf/chat_template/pythonic.jinja writes.
"""

import dataclasses
import json
import random
from collections.abc import Callable, Iterator

from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.records import RawTask

MISSES = 1000  # consecutive draws without a new task after which generation fails
DONE = "done"  # a player's last reply, without a call

Turn = tuple[str, str]  # a call, and what the environment returns


@dataclasses.dataclass(frozen=True)
class Game:
    """A task, and how it is played. shown: what `reset` returns, below the question."""

    question: str
    answer: str
    turns: list[Turn]
    shown: str = ""


def call(name: str, /, **arguments: str | int) -> str:
    written = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
    return f"[{name}({written})]"


def games(world: str, seed: int, tasks: int, demonstrations: int, draw: Callable[[random.Random], Game]
          ) -> Iterator[RawTask]:
    """Distinct tasks without a solution, and conversations of other distinct ones, in random order.

    Raises ConfigError when `draw` has fewer.
    """
    source = random.Random(f"{world} {seed}")
    drawn: dict[tuple[str, str], Game] = {}
    misses = 0
    while len(drawn) < tasks + demonstrations:
        game = draw(source)
        misses = misses + 1 if (game.question, game.answer) in drawn else 0
        drawn.setdefault((game.question, game.answer), game)
        if misses == MISSES:
            raise ConfigError(f"generator_args: {tasks} tasks and {demonstrations} demonstrations, and only "
                              f"{len(drawn)} distinct ones turned up; ask for fewer, or for a larger world.")
    found = list(drawn.values())
    rows = [RawTask(0, game.question, game.answer, None) for game in found[:tasks]]
    rows += [_conversation(game) for game in found[tasks:]]
    source.shuffle(rows)
    for position, row in enumerate(rows):
        yield dataclasses.replace(row, row=position)


def _conversation(game: Game) -> RawTask:
    """The last reply, after all others."""
    seen, context = f"{game.question}\n{game.shown}" if game.shown else game.question, []
    for said, returned in game.turns:
        context += [{"role": "user", "content": seen}, {"role": "assistant", "content": said}]
        seen = returned
    return RawTask(0, seen, game.answer, DONE, context)
