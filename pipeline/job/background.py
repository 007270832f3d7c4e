"""Reads or writes one step's files during the computation of another: one thread, in order, errors propagate."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any


class Background:
    """Runs at most one call at a time; the next one waits for it. Every later method raises what a call raised.

    The interpreter does not end before its last call does: a call that waits for another process must be stoppable. A
    trainer that succeeded ends without that (stages/explorer/children.py), so it finishes its own first.
    """

    def __init__(self):
        self._thread = ThreadPoolExecutor(1)
        self._call: Future | None = None

    def start(self, function: Callable, *arguments) -> Future:
        """Starts `function(*arguments)` once the previous call has ended; returns its future."""
        self.finish()
        self._call = self._thread.submit(function, *arguments)
        return self._call

    def check(self) -> None:
        """Raises the error of the last call if it has ended. Does not wait."""
        if self._call is not None and self._call.done():
            self._call.result()

    def wait(self, seconds: float) -> bool:
        """Waits for the last call, at most so long; returns whether it has ended."""
        return self._call is None or bool(wait([self._call], seconds).done)

    def finish(self) -> Any:
        """Waits for the last call and returns its result; None when there was none."""
        return self._call.result() if self._call is not None else None
