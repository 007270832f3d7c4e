"""What a child of a stage is doing: one line in a file, by which the stage's process notices that it hangs.

A process that waits for another one renews the line: only what has stopped altogether is not alive.
"""

import faulthandler
import os
import signal
import time
from pathlib import Path

LINE = 128  # bytes: written at once, so that a reader never sees a part of it
RENEW_SECONDS = 1.0
STACK_SIGNAL = signal.SIGUSR1
UNLIMITED = "scores all rows"  # kind of an activity of any duration


class Activity:
    """The activity of this process. path: None if no other process watches it."""

    def __init__(self, path: Path | None = None):
        self._file = None if path is None else os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        self._text, self._written = "starts", 0.0
        self.now("starts")

    def now(self, kind: str, detail: str = "") -> None:
        """Says what the process does from now on. kind: its usual duration is known by it, such as `trains`."""
        self._text = f"{kind}|{detail}"
        self._write()

    def alive(self) -> None:
        """Says that the activity goes on."""
        if time.monotonic() - self._written > RENEW_SECONDS:
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        if self._file is not None:
            os.pwrite(self._file, self._text.encode()[: LINE - 1].ljust(LINE - 1) + b"\n", 0)


def show_stack_on_signal() -> None:
    """Writes the Python stacks of this process to standard error, its log, at STACK_SIGNAL, whatever it is doing."""
    faulthandler.register(STACK_SIGNAL, all_threads=True)
