"""Calls of a reward function in their own processes, for one that ended its stage's (pipeline/job/own_process.py).

    python -m ouroboros.workflows.attempts.apart FD

starts the process that forks them (workflows/attempts/forking.py). One of them answers call after call; where it ends,
that call fails, and the next one has another process.
"""

import asyncio
import inspect
import os
import socket
from collections.abc import Callable
from functools import cache, partial, update_wrapper, wraps
from typing import Any

from ouroboros.pipeline.store.user_errors import brief, load_dotted
from ouroboros.workflows.attempts.forker import Forker
from ouroboros.workflows.attempts.forking import obey
from ouroboros.workflows.attempts.time_limit import leaving, limited
from ouroboros.workflows.attempts.wire import Unpacker, packed


class Failed(Exception):
    """A call that raised, or whose process ended; the text continues the name of the function."""


class _Process:
    """A process that answers calls, one at a time."""

    def __init__(self, name: str, seconds: float | None):
        self._number, self._channel = forker().fork(name.partition(":")[0])
        self._unpacker, self._first = Unpacker(), packed((name, seconds))

    def ask(self, call: bytes) -> tuple[bool, Any]:
        """Returns whether it succeeded, and what it returned, or what is wrong."""
        try:
            self._channel.sendall(self._first + call)
            self._first = b""
            while data := self._channel.recv(1 << 16):
                for answer in self._unpacker.feed(data):
                    return answer
        except ConnectionError:  # it has ended, before it read the call or everything of it
            pass
        self._channel.close()
        raise Failed(f"did not return: its process {forker().how(self._number)}")


forker = cache(partial(Forker, "ouroboros.workflows.attempts.apart"))


class _Apart:
    """A function, as seen by whoever calls it."""

    def __init__(self, function: Callable, name: str, seconds: float | None):
        update_wrapper(self, function)
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self._start, self._idle = partial(_Process, name, seconds), []

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        call = packed((arguments, named))
        try:
            process = self._idle.pop()
        except IndexError:  # also where another thread took the last one
            process = self._start()
        is_fine, found = process.ask(call)
        self._idle.append(process)
        if not is_fine:
            raise Failed(found)
        return found


def apart(function: Callable, name: str, seconds: float | None) -> Callable:
    """The function of that name (`package.module:function`), called apart. seconds: limit of a call, or None."""
    call = _Apart(function, name, seconds)
    if not any(map(inspect.iscoroutinefunction, (function, type(function).__call__))):
        return call

    @wraps(call)
    async def together(*arguments: Any, **named: Any) -> Any:
        return await asyncio.to_thread(call, *arguments, **named)

    return together


def answer(channel: socket.socket) -> None:
    """Answers calls until the other side closes the channel; the first message names the function and its limit."""
    unpacker, named, own = Unpacker(), None, os.getpid()
    os.register_at_fork(after_in_child=channel.close)  # what the function forks must not hold it open
    with asyncio.Runner() as runner:
        while data := channel.recv(1 << 16):
            for message in unpacker.feed(data):
                if named is None:
                    named = message
                    continue
                found = _answer(runner, *named, *message)
                if os.getpid() != own:
                    os._exit(0)  # a copy that the function made of this process
                channel.sendall(found)


def _answer(runner: asyncio.Runner, name: str, seconds: float | None, arguments: tuple, named: dict[str, Any]) -> bytes:
    try:
        found = limited(load_dotted(name), seconds)(*arguments, **named)
        if inspect.isawaitable(found):
            found, left = runner.run(leaving(found))
            if left:
                raise left
        return packed((True, found))
    except BaseException as error:  # of the user's function, which may also return what cannot be sent
        return packed((False, f"raised {brief(error)}"))


if __name__ == "__main__":
    obey(answer)
