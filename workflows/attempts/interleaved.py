"""Attempts whose workflow is a generator: its code runs in the explorer's process, between the replies of others."""

from collections.abc import Callable
from numbers import Integral
from typing import Any

from ouroboros.pipeline.store.user_errors import brief
from ouroboros.workflows.attempts.time_limit import NOT_THEIRS
from ouroboros.workflows.protocol.engine import Reply
from ouroboros.workflows.protocol.trajectory import Attempt


class InterleavedAttempt:
    """An attempt in the explorer's process."""

    def __init__(self, workflow: Callable[[list[int]], Attempt], prompt: list[int], place):
        """place: its place in the schedule (workflows/attempts/schedule.py)."""
        self._workflow, self._prompt, self._place = workflow, prompt, place

    def begin(self) -> None:
        self._move(self._first)

    def answer(self, call: int, reply: Reply) -> None:
        self._move(lambda: self._generator.send(reply))

    def close(self) -> None:
        """Does nothing: a generator ends with its last reference."""

    def _first(self) -> list[int]:
        self._generator = self._workflow(self._prompt)
        return next(self._generator)

    def _move(self, move: Callable[[], Any]) -> None:
        """Advances the workflow by one move; it then waits for a reply, is finished, or has failed."""
        try:
            if not _are_tokens(prompt := move()):
                raise TypeError(f"the workflow yielded {type(prompt).__name__} {str(prompt)[:40]!r}; needed a list of "
                                "token ids, such as those of task.prompt(messages)")
            self._place.ask(0, [*prompt])  # theirs may grow
        except StopIteration as done:
            self._place.finish(done.value)
        except NOT_THEIRS:
            raise
        except BaseException as error:  # the user's workflow, which may also exit: fails only this row, not the stage
            self._place.fail(brief(error))


def _are_tokens(prompt: Any) -> bool:
    return isinstance(prompt, (list, tuple)) and all(issubclass(kind, Integral) for kind in set(map(type, prompt)))
