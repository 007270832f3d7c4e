"""A process that watches its stage's own: what tasks, curation, models and reports do, and a stage that is stopped.

It is forked before the stage has threads or locks, ends with it, and reads its activity from memory that they share.
Stages with children watch those themselves (stages/explorer/children.py).
"""

import contextlib
import faulthandler
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from ouroboros.pipeline.job.activity import STACK_SIGNAL, WAITS, Activity, show_stack_on_signal
from ouroboros.pipeline.job.ending import SIGNALS, die_with_parent
from ouroboros.pipeline.job.processes import end_below
from ouroboros.pipeline.job.watchdog import Watchdog

LIMIT_SECONDS = 4 * 3600.0  # without a sign of life: an operator of curation may take long over many rows
LOOK_SECONDS = 0.5
NAME = "stage"  # of its log


@contextlib.contextmanager
def guarded(directory: Path, log: IO, record: Callable[[str], object]) -> Iterator[Activity]:
    """Yields the activity of this process; while it lasts, another process looks for signs of life.

    log: open file, of the stage's log. record: called in the other process with what hangs, before it kills this one.
    """
    shared = os.memfd_create("activity")
    file = Path(f"/proc/self/fd/{shared}")  # in both processes
    activity = Activity(file)
    activity.now(WAITS)
    stage = os.getpid()
    guard = os.fork()
    if guard == 0:
        _watch(Watchdog(NAME, directory, [stage], None, "fixed", first=LIMIT_SECONDS, file=file), record)
    show_stack_on_signal(log)
    try:
        yield activity
    finally:
        faulthandler.unregister(STACK_SIGNAL)
        os.kill(guard, signal.SIGKILL)
        os.waitpid(guard, 0)
        os.close(shared)


def _watch(dog: Watchdog, record: Callable[[str], object]) -> None:
    """Never returns: ends with the stage."""
    die_with_parent()
    for number in SIGNALS:  # sent to all of a process group; the stage may still save something
        signal.signal(number, signal.SIG_IGN)
    (stage,) = dog.pids
    while not dog.hangs():
        time.sleep(LOOK_SECONDS)
        if os.getppid() != stage:  # it ended before the call above
            os._exit(0)
    record(dog.explain())
    end_below(stage)
    os.kill(stage, signal.SIGKILL)
    os._exit(0)
