"""Notices a child that hangs: whose activity (pipeline/job/activity.py) has not changed for longer than its limit."""

import contextlib
import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from ouroboros.pipeline.job.activity import CALLS, STACK_SIGNAL, UNLIMITED, WAITS, Doing
from ouroboros.pipeline.job.processes import called, descendants, status, stopped

START_SECONDS = 3600.0  # limit of an activity that a child has not completed before: loading, compilation
LEAST_SECONDS, FACTOR = 120.0, 20  # automatic limit of others: FACTOR times their median, at least LEAST_SECONDS
CALL_SECONDS = 600.0  # least automatic limit of a call of the user's code, which may wait for a server
ENOUGH = 3  # completed activities of a kind that its median needs
LARGEST_GAP = 1.0  # seconds between two looks that count at most: this process may have been stopped itself
STACK_SECONDS, FRAMES = 2.0, 8  # time for a process to write its stack; innermost calls that are shown


@dataclass
class Watchdog:
    """Watches one child, or the process of a stage (pipeline/job/guard.py).

    limit: of `setting`, seconds; None: automatic, from the durations so far. call_limit: explorer.max_timeout, at which
    a call of the user's code ends unless it never returns to Python. first: automatic limit of an activity that was not
    completed before. file: of the activity, by default in the stage's directory.
    """

    name: str
    directory: Path
    pids: list[int]
    limit: float | None
    setting: str
    call_limit: float | None = None
    first: float = START_SECONDS
    file: Path | None = None
    seconds: float = 0.0  # since the last sign of life
    activity: Doing = Doing("starts")
    _renewed: int = 0
    _looked: float = field(default_factory=time.monotonic)

    def hangs(self) -> bool:
        """Whether the child is over its limit; call several times a second."""
        now = time.monotonic()
        self.seconds += min(now - self._looked, LARGEST_GAP)
        self._looked = now
        with contextlib.suppress(FileNotFoundError):  # it has not started yet
            file = self.file or activity_file(self.directory, self.name)
            renewed = file.stat().st_mtime_ns
            if renewed != self._renewed and file.stat().st_size:
                self._renewed, self.seconds, self.activity = renewed, 0.0, Doing.read(file)
        return self.seconds > self.allowed() or (self.seconds > self._if_stopped() and bool(stopped(self._family())))

    def _if_stopped(self) -> float:
        """The limit of a process that does nothing at all, whatever it was doing, seconds."""
        return LEAST_SECONDS if self.limit is None else self.limit

    def _family(self) -> list[int]:
        return [pid for own in self.pids for pid in (own, *descendants(own))]

    def allowed(self) -> float:
        """The limit of the present activity, seconds."""
        if self.activity.kind in (UNLIMITED, WAITS):
            return math.inf
        if self.activity.kind.startswith(CALLS):
            return self._allowed_call()
        if self.limit is not None:  # holds once the child is past its first step
            least = START_SECONDS if self.activity.steps < 2 else 0.0 if self.activity.completed else LEAST_SECONDS
            return max(self.limit, least)
        if self.activity.completed < ENOUGH:
            return self.first
        return max(LEAST_SECONDS, FACTOR * self.activity.typical)

    def _allowed_call(self) -> float:
        """The limit of a call of the user's code, also of the first one: it loads and compiles nothing of ours."""
        known = self.activity.completed >= ENOUGH
        if self.limit is None:
            own = max(CALL_SECONDS, FACTOR * self.activity.typical if known else 0.0)
        else:
            own = max(self.limit, 0.0 if known else LEAST_SECONDS)
        if self.call_limit is None:
            return own
        late = self.call_limit + LEAST_SECONDS
        return late if self.limit is None else max(own, late)

    def explain(self) -> str:
        """What hangs, since when, and where in its code. Asks its processes for their stacks."""
        chosen = "" if self.limit is None else f"={self.limit:g}"
        allowed = self.allowed()
        if still := stopped(self._family()):
            allowed = min(allowed, self._if_stopped())
            where = "; ".join(f"{called(pid)} is stopped (state T): something sent it SIGSTOP, kill -CONT {pid} lets "
                              "it go on" for pid in still)
        else:
            where = "its stack, innermost call last:\n" + self._stack(self._family())
            if self.activity.kind.startswith(CALLS) and self.call_limit is None:
                where += "\n  with explorer.max_timeout=SECONDS a call that takes longer is a failed row instead"
        who = "process" if self.name == "stage" else self.name
        return (f"the {who} of stage {self.directory.name} hangs: it gave no sign of life for {self.seconds:.0f} s, "
                f"limit {allowed:.0f} s ({self.setting}{chosen}); activity: {self.activity}; {where}\n  its log: "
                f"{self.directory / f'{self.name}.log'}")

    def _stack(self, family: list[int]) -> str:
        """The stack of the main thread of the first process that writes one; all are in its log."""
        log = self.directory / f"{self.name}.log"
        begin = log.stat().st_size
        for pid in filter(catches, family):
            os.kill(pid, STACK_SIGNAL)
        deadline = time.monotonic() + STACK_SECONDS
        found: list[str] = []
        while not found and time.monotonic() < deadline:
            time.sleep(STACK_SECONDS / 10)
            with open(log, "rb") as file:
                file.seek(begin)
                threads = file.read().decode(errors="replace").partition("Current thread ")[2]
            found = [line for line in threads.splitlines()[1:] if line.startswith("  File ")]
        return "\n".join(reversed(found[:FRAMES])) or "  it wrote none: it is in code that is not Python's"


def activity_file(directory: Path, name: str) -> Path:
    return directory / f"{name}.activity"


def catches(pid: int) -> bool:
    """Whether a process has a handler for STACK_SIGNAL, which otherwise would end it."""
    return bool(int(status(pid, "SigCgt") or "0", 16) >> (STACK_SIGNAL - 1) & 1)
