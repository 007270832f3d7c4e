"""Ends whole process trees: a command in its own group, the jobs of snakemake, orphans in their own sessions."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ouroboros.pipeline.job import ending
from ouroboros.pipeline.job.ending import RUNNER, TOGETHER_SECONDS
from ouroboros.pipeline.job.processes import called, children, descendants, status, stopped
from ouroboros.pipeline.store.parent import adopt_orphans

SIGNALS = (*ending.SIGNALS, signal.SIGQUIT)
MOST_ASKED = 3  # the third signal kills
POLL_SECONDS = 0.2
GRACE_SECONDS = 15.0  # beyond the time of a checkpoint: a stage needs it to end its children, snakemake to end itself
STOPPED_SECONDS = 30.0  # after which a stopped process is reported
JOB = b"\0-m\0ouroboros.stages."  # in the command line of a job


def run_group(command: list[str], environment: dict[str, str], streams: dict[str, int],
              poll: Callable[[], int | None], grace: float = 0.0) -> tuple[int, int | None]:
    """Runs a command; returns its exit code, and the signal that requested the stop (SIGNALS), if any.

    streams: its `stdout` and `stderr`. poll: called several times a second; may return a signal, as if it had been
    received. grace: seconds that the command may take to end on request. No process of the group remains afterwards: a
    stage may outlive a snakemake that was killed.
    """
    environment = environment | {RUNNER: str(os.getpid())}
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        return _wait(subprocess.Popen(command, env=environment, **streams), poll), None
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, process_group=0,
                               preexec_fn=_receive_interrupts, **streams)
    stop = _Stop(process.pid, poll, grace + GRACE_SECONDS)
    usual = {one: signal.getsignal(one) for one in SIGNALS}
    try:
        for one in SIGNALS:
            if usual[one] is not signal.SIG_IGN:  # as set by `nohup`
                signal.signal(one, stop.receive)
        code = _wait(process, stop.poll)
    finally:
        _end(process.pid, grace + GRACE_SECONDS)
        for one in SIGNALS:
            signal.signal(one, usual[one])
    return code, stop.received[0] if stop.received else None


class _Stop:
    """The request to end a process group, by a signal or by `ask`, and how long the group has had since."""

    def __init__(self, group: int, ask: Callable[[], int | None], limit: float):
        """limit: seconds from the request after which the group is killed."""
        self.group, self.ask, self.limit = group, ask, limit
        self.received: list[int] = []
        self._deadline: float | None = None
        self._warn_of_stopped = StoppedProcesses(group)

    def receive(self, number: int, frame=None) -> None:
        """Handles a signal to this process."""
        self.received.append(number)
        if len(self.received) < MOST_ASKED:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.group, number if number in ending.SIGNALS else signal.SIGTERM)  # it passes it on to jobs
        else:
            _send(self.group, signal.SIGKILL)

    def poll(self) -> None:
        number = self.ask()
        self._warn_of_stopped()
        if number and not self.received:  # a stage was asked: so are the others
            self.received.append(number)
            os.kill(self.group, signal.SIGTERM)
        if self.received and self._deadline is None:
            self._deadline = time.monotonic() + self.limit
            print("\nouro: stopping the running stages; trainers save their last step, for at most "
                  f"{self.limit - GRACE_SECONDS:g} s", file=sys.stderr, flush=True)
        if self._deadline and time.monotonic() > self._deadline:
            _send(self.group, signal.SIGKILL)


class StoppedProcesses:
    """Warns of a process, or one below it, that was stopped (SIGSTOP) and stays so; call several times a second.

    The process of a stage ends children that hang; nobody watches it itself, and Ctrl-Z may be meant.
    """

    def __init__(self, pid: int):
        self.pid, self._seconds, self._looked = pid, {}, time.monotonic()

    def __call__(self) -> None:
        passed = time.monotonic() - self._looked
        if passed < STOPPED_SECONDS / 10:
            return
        self._looked = time.monotonic()
        before, self._seconds = self._seconds, {}
        for pid in stopped([self.pid, *descendants(self.pid)]):
            self._seconds[pid] = before.get(pid, 0.0) + min(passed, STOPPED_SECONDS / 5)  # this one may have slept
            if before.get(pid, 0.0) < STOPPED_SECONDS <= self._seconds[pid]:
                print(f"ouro: {called(pid)} is stopped (state T) and its stage waits: kill -CONT {pid} lets it go on, "
                      f"kill -KILL {pid} ends it", file=sys.stderr, flush=True)


def pass_on_signals() -> None:
    """In snakemake: a signal ends its jobs, and then snakemake, which starts no other; a second
    Ctrl-C kills them.

    By itself snakemake would wait for its jobs to complete.
    """
    asked: list[tuple[int, float]] = []

    def handle(number: int, frame) -> None:
        if not asked:
            asked.append((number, time.monotonic()))
            threading.Thread(target=_signal_jobs, args=(number,), daemon=True).start()
            raise KeyboardInterrupt  # snakemake cancels jobs on other machines, and waits for those on this one
        if number == signal.SIGINT and time.monotonic() > asked[0][1] + TOGETHER_SECONDS:
            for job in _jobs():
                os.kill(job, signal.SIGKILL)

    for one in ending.SIGNALS:
        if signal.getsignal(one) is not signal.SIG_IGN:
            signal.signal(one, handle)


def _signal_jobs(number: int) -> None:
    """Signals every job once, also one that is just starting."""
    told: set[int] = set()
    while True:
        for job in _jobs() - told:
            with contextlib.suppress(ProcessLookupError):
                os.kill(job, number)
            told.add(job)
        time.sleep(POLL_SECONDS)


def _jobs() -> set[int]:
    """The stages that this process runs, not what they started."""
    found = set()
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if status(pid, "PPid") == str(os.getpid()) and JOB in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
    return found


def _receive_interrupts() -> None:
    """Restores SIGINT in the child: shells ignore it for background processes, but here it requests the stop."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _wait(process: subprocess.Popen, poll: Callable[[], object]) -> int:
    while True:
        try:
            return process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            poll()


def _end(group: int, grace: float) -> None:
    """Ends the rest of a process group: requests termination, and kills after the time of grace, seconds."""
    deadline = time.monotonic() + grace
    left = _send(group, signal.SIGINT)
    while left and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        left = _send(group, 0)
    _send(group, signal.SIGKILL)


def _send(group: int, number: int) -> bool:
    """Sends a signal to a process group; returns whether the group exists."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def ending_orphans() -> Iterator[None]:
    """On exit, kills orphaned descendants of this process, including those in their own sessions."""
    adopt_orphans()
    before = set(children(os.getpid()))
    try:
        yield
    finally:
        while left := set(children(os.getpid())) - before:
            for number in left:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(number, signal.SIGKILL)
                    os.waitpid(number, 0)
        adopt_orphans(False)
