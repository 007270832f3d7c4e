"""Ends whole process trees: a command in its own group, and orphans in sessions of their own."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
MOST_ASKED = 3  # the third signal kills
POLL_SECONDS = 0.2
GRACE_SECONDS = 15.0  # longer than a stage needs to end its children (stages/explorer/children.py)


def run_group(command: list[str], environment: dict[str, str], streams: dict[str, int],
              poll: Callable[[], None]) -> tuple[int, int | None]:
    """Runs a command; returns its exit code, and the signal that requested the stop (SIGNALS), if any.

    streams: its `stdout` and `stderr`. poll: called several times a second. No process of the group remains afterwards:
    a stage may outlive a snakemake that was killed.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        return _wait(subprocess.Popen(command, env=environment, **streams), poll), None
    received: list[int] = []
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, process_group=0,
                               preexec_fn=_receive_interrupts, **streams)

    def stop(number: int, frame) -> None:
        received.append(number)
        _send(process.pid, signal.SIGINT if len(received) < MOST_ASKED else signal.SIGKILL)

    def poll_and_announce() -> None:
        if len(received) == 1 and not announced:
            announced.append(print("\nouro: stopping the running stages", file=sys.stderr, flush=True))
        poll()

    announced: list[None] = []
    usual = {one: signal.getsignal(one) for one in SIGNALS}
    try:
        for one in SIGNALS:
            if usual[one] is not signal.SIG_IGN:  # as set by `nohup`
                signal.signal(one, stop)
        code = _wait(process, poll_and_announce)
    finally:
        _end(process.pid)
        for one in SIGNALS:
            signal.signal(one, usual[one])
    return code, received[0] if received else None


def _receive_interrupts() -> None:
    """Restores SIGINT in the child: shells ignore it for background processes, but here it requests the stop."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _wait(process: subprocess.Popen, poll: Callable[[], None]) -> int:
    while True:
        try:
            return process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            poll()


def _end(group: int) -> None:
    """Ends the rest of a process group: requests termination, and kills after GRACE_SECONDS."""
    deadline = time.monotonic() + GRACE_SECONDS
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
    """On exit, kills orphaned descendants of this process, including those in sessions of their own.

    As a subreaper (prctl(2)) this process becomes the parent of such orphans.
    """
    import ctypes

    ctypes.CDLL(None).prctl(36, 1)  # 36 = PR_SET_CHILD_SUBREAPER
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = set(children.read_text().split())
    try:
        yield
    finally:
        while left := set(children.read_text().split()) - before:
            for number in map(int, left):
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(number, signal.SIGKILL)
                    os.waitpid(number, 0)
        ctypes.CDLL(None).prctl(36, 0)
