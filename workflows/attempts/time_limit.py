"""A limit on the time of user code (explorer.max_timeout): a call that sleeps or never ends fails like one that raises.

The code runs in the main thread of this process. At its deadline the kernel sends a signal, whose handler raises where
the code is: that ends sleeps, loops, waits for sockets and processes, and regular expressions, but not a library's own
loop in C, which the watchdog of the stage ends (trainer.step_timeout_seconds, explorer.step_timeout_seconds).
"""

import asyncio
import ctypes
import inspect
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, wraps
from typing import Any

from ouroboros.pipeline.job.ending import Stopped
from ouroboros.pipeline.store.errors import StageError
from ouroboros.workflows.protocol.trajectory import Attempt

SIGNAL = signal.SIGUSR2  # SIGALRM belongs to math_verify
CLOCK_MONOTONIC, SIGEV_THREAD_ID = 1, 4


class _Event(ctypes.Structure):
    """The struct sigevent of the kernel."""

    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int),
                ("thread", ctypes.c_int), ("padding", ctypes.c_byte * 44)]


class TimedOut(Exception):
    """The code of a user took longer than explorer.max_timeout."""

    def __init__(self, seconds: float, name: str = ""):
        """name: of the function, where the message is not shown behind it."""
        super().__init__(f"{name} timed out after {seconds:g} s (explorer.max_timeout)".strip())


class _Deadline(BaseException):
    """Raised in the middle of user code, past its `except Exception`."""


NOT_THEIRS = (Stopped, _Deadline)  # raised in user code by a signal; all else, sys.exit too, is what it raised itself


class _Alarm:
    """The deadline of the code that runs in the main thread, and a timer of the kernel for it (timer_create(2)).

    A timer of Python's would be one for the whole process (setitimer), which math_verify sets too; a thread could not
    run while a regular expression is matched.
    """

    def __init__(self):
        self.deadline: float | None = None  # time.monotonic()
        signal.signal(SIGNAL, self._ring)
        library = ctypes.CDLL(None)
        self._library = library if hasattr(library, "timer_create") else ctypes.CDLL("librt.so.1")  # before glibc 2.34
        thread = threading.get_native_id()  # main_thread().native_id is the parent's in a forked process
        event = _Event(0, SIGNAL, SIGEV_THREAD_ID, thread)
        self._timer = ctypes.c_void_p()
        if self._library.timer_create(CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)):
            raise StageError("explorer.max_timeout needs a timer, and the kernel granted none (timer_create): look at "
                             "`ulimit -i`.")

    def set(self, deadline: float | None) -> None:
        self.deadline = deadline
        left = 0.0 if deadline is None else max(deadline - time.monotonic(), 1e-6)  # 0 disarms
        seconds = int(left)
        times = (ctypes.c_long * 4)(0, 0, seconds, int((left - seconds) * 1e9))  # interval, then first expiry
        self._library.timer_settime(self._timer, 0, times, None)

    def _ring(self, number: int, frame) -> None:
        if self.deadline is not None and time.monotonic() >= self.deadline:  # the code may have ended meanwhile
            self.deadline = None
            raise _Deadline


_alarm = cache(_Alarm)


@contextmanager
def _within(left: float, limit: float, name: str = "") -> Iterator[None]:
    """Raises TimedOut in the block after `left` seconds; blocks may be nested. limit, name: for the message."""
    assert threading.current_thread() is threading.main_thread(), "only the main thread receives signals"
    alarm = _alarm()
    outer, own = alarm.deadline, time.monotonic() + left
    try:
        try:
            alarm.set(own if outer is None else min(own, outer))
            yield
        finally:
            alarm.set(outer)
    except _Deadline as over:
        if outer is not None and outer < own:  # that of the code around the block
            raise
        raise TimedOut(limit, name).with_traceback(over.__traceback__) from None


def limited(function: Callable, seconds: float | None) -> Callable:
    """A reward function that raises TimedOut when a call takes longer than `seconds`; the same one without a limit."""
    if seconds is None:
        return function

    @wraps(function)
    def call(*arguments, **named):
        with _within(seconds, seconds):
            found = function(*arguments, **named)
        return _awaited(found, seconds) if inspect.isawaitable(found) else found

    call.__name__ = getattr(function, "__name__", type(function).__name__)
    return call


async def _awaited(call: Awaitable, seconds: float) -> Any:
    try:
        found, left = await asyncio.wait_for(leaving(call), seconds)
    except TimeoutError as error:
        raise TimedOut(seconds) from error
    if left:
        raise left
    return found


async def leaving(call: Awaitable) -> tuple[Any, BaseException | None]:
    """What a call returned, and what it raised to end the process (sys.exit), which would end the loop at once."""
    try:
        return await call, None
    except NOT_THEIRS:
        raise
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


def watched_workflow(workflow: Callable[..., Attempt], calling: Callable[[], AbstractContextManager]
                     ) -> Callable[..., Attempt]:
    """A workflow whose own code runs within `calling()`."""
    @wraps(workflow)
    def attempt(*arguments, **named) -> Attempt:
        own, reply = None, None
        while True:
            with calling():
                try:
                    own = own or iter(workflow(*arguments, **named))
                    asked = own.send(reply)
                except StopIteration as done:
                    return done.value
            reply = yield asked

    return attempt


def limited_workflow(workflow: Callable[..., Attempt], seconds: float | None) -> Callable[..., Attempt]:
    """A workflow that raises TimedOut when its own code takes longer than `seconds` in an attempt; the engine's time
    does not count."""
    if seconds is None:
        return workflow

    @wraps(workflow)
    def attempt(*arguments, **named) -> Attempt:
        left, own, reply = seconds, None, None
        name = getattr(getattr(workflow, "func", workflow), "__name__", "")  # of a partial too
        while True:
            begin = time.monotonic()
            try:
                with _within(left, seconds, name):
                    own = own or workflow(*arguments, **named)
                    asked = own.send(reply)
            except StopIteration as done:
                return done.value
            left -= time.monotonic() - begin
            reply = yield asked

    return attempt
