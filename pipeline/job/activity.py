"""What a child of a stage is doing: one line in a file, by which the stage's process notices that it hangs.

A process that waits for another one renews the line: only what has stopped altogether is not alive.
"""

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import IO, NamedTuple

from ouroboros.pipeline.job.ending import Stopped

LINE = 256  # bytes: written at once, so that a reader never sees a part of it
KEPT = 50  # durations of a kind
KIND = 150  # characters of the name of a call
RENEW_SECONDS = 1.0
STACK_SIGNAL = signal.SIGUSR1
UNLIMITED = "scores all rows"  # kind of an activity of any duration
WAITS = "waits for its turn"  # another one
CALLS = "calls the "  # begins the kind of an activity in the user's code


class Doing(NamedTuple):
    """An activity: its kind, such as `trains`, and which one.

    completed: how often this kind was completed before. typical: the median of its last durations, seconds. steps: how
    often the most frequent kind was completed.
    """

    kind: str
    detail: str = ""
    completed: int = 0
    typical: float = 0.0
    steps: int = 0

    @classmethod
    def read(cls, path: Path) -> "Doing":
        kind, detail, completed, typical, steps = path.read_text(encoding="utf-8").split("|")
        return cls(kind, detail, int(completed), float(typical), int(steps))

    def __str__(self) -> str:
        return f"{self.kind}, {self.detail}" if self.detail else self.kind


class Activity:
    """The activity of this process. path: None if no other process watches it."""

    def __init__(self, path: Path | None = None):
        self._file = None if path is None else os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        self._durations: dict[str, list[float]] = {}
        self._calls: dict[str, list[float]] = {}  # durations of calls of the user's code, parts of those above
        self._doing, self._since, self._written = Doing("starts"), time.monotonic(), 0.0
        self._write()

    def now(self, kind: str, detail: str = "") -> None:
        """Says what the process does from now on."""
        of_kind = self._durations.setdefault(self._doing.kind, [])
        of_kind.append(time.monotonic() - self._since)
        del of_kind[:-KEPT]
        known = self._durations.get(kind, [])
        self._doing = Doing(kind, detail, len(known), round(median(known), 3) if known else 0.0,
                            max(map(len, self._durations.values())))
        self._since = time.monotonic()
        self._write()

    def reached(self, detail: str) -> None:
        """Says how far the activity is, as its detail. Without a change it gives no sign of life."""
        if detail != self._doing.detail and time.monotonic() - self._written > RENEW_SECONDS:
            self._doing = self._doing._replace(detail=detail)
            self._write()

    @contextmanager
    def calling(self, name: str) -> Iterator[None]:
        """Says that the process calls code of the user in the block, and then goes on with what it did before."""
        outer, begin, kind = self._doing, time.monotonic(), CALLS + ascii(name).strip("'").replace("|", "/")[:KIND]
        known = self._calls.setdefault(kind, [])
        self._doing = Doing(kind, "", len(known), round(median(known), 3) if known else 0.0, outer.steps)
        self._write()
        try:
            yield
        finally:
            known.append(time.monotonic() - begin)
            del known[:-KEPT]
            if not isinstance(sys.exception(), Stopped):  # the call may have sent the signal itself
                self._doing = outer
                self._write()

    def alive(self) -> None:
        """Says that the activity goes on."""
        if time.monotonic() - self._written > RENEW_SECONDS:
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        if self._file is not None:
            line = "|".join(map(str, self._doing)).encode()
            assert len(line) < LINE, "an activity is a few words"
            os.pwrite(self._file, line.ljust(LINE - 1) + b"\n", 0)


def show_stack_on_signal(log: IO = sys.stderr) -> None:
    """Writes the Python stacks of this process to its log at STACK_SIGNAL, whatever it is doing."""
    faulthandler.register(STACK_SIGNAL, log, all_threads=True)
