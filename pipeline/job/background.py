"""Files of one step written, or read, while another is computed: one thread, in order, and no error is lost."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Background:
    """At most one call is under way; the next one waits for it. What a call raises, every later method raises.

    The process does not end before its last call does: a call that waits for another process must be stoppable.
    """

    def __init__(self):
        self._thread = ThreadPoolExecutor(1)
        self._call: Future | None = None

    def start(self, function: Callable, *arguments) -> None:
        """Starts `function(*arguments)` once the last call is over."""
        self.finish()
        self._call = self._thread.submit(function, *arguments)

    def check(self) -> None:
        """Raises what the last call raised, if it is over. Does not wait."""
        if self._call is not None and self._call.done():
            self._call.result()

    def finish(self) -> Any:
        """Waits for the last call and returns what it returned; None when there was none."""
        return self._call.result() if self._call is not None else None
