"""How a process ends when asked to: by SIGINT, SIGTERM or SIGHUP, or by the death of the process that runs it.

A request reaches every process of a run: `ouro` passes it to snakemake, snakemake to its stages, and a stage to its
children; a child that was asked directly ends, and with it its stage. Only trainers take their time, for a checkpoint.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from ouroboros.pipeline.store import user_calls
from ouroboros.pipeline.store.parent import die_with_parent

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# signals within this time are one request: a terminal signals the whole process group, whose members pass it on too
TOGETHER_SECONDS = 1.0
LEAVE_SECONDS = 60.0  # for a process to end by itself
OUT_OF_TIME = signal.SIGXCPU  # the reason of a stage that ends by itself before its job's time limit
INTERRUPTED = "interrupted"  # first word of stage.error for a stage that was asked to end
RUNNER = "OURO_RUNNER"  # environment variable: the process that runs this one (ouro, or snakemake)


class Stopped(KeyboardInterrupt):
    """The process was asked to end. note: what was saved, for the user."""

    def __init__(self, number: int, note: str = ""):
        text = f"{INTERRUPTED} by {signal.Signals(number).name}"
        super().__init__(f"{text}; {note}" if note else text)
        self.number, self.note = number, note

    @property
    def exit_code(self) -> int:
        return 128 + self.number


class Ending:
    """Receives the requests to end a process: the first one raises Stopped, a later Ctrl-C ends it at once."""

    def __init__(self):
        self.stopped: Stopped | None = None
        self.began = 0.0  # time.monotonic() of the first request
        self._raises, self._complete = True, False

    def listen(self, again: Callable[[Stopped], object] = lambda stopped: None) -> None:
        """Installs the handlers; a signal that is ignored, as SIGHUP under nohup, stays so.

        again: called for a later SIGINT, before the process exits.
        """
        def handle(number: int, frame: FrameType | None) -> None:
            if self.stopped is None:
                user_calls.keep()
                self.stopped, self.began = Stopped(number), time.monotonic()
                if self._complete:
                    end_later(0)
                elif self._raises:
                    raise self.stopped
            elif number == signal.SIGINT and time.monotonic() - self.began > TOGETHER_SECONDS:
                if not self._complete:
                    again(self.stopped)
                os._exit(0 if self._complete else self.stopped.exit_code)

        for one in SIGNALS:
            if signal.getsignal(one) is not signal.SIG_IGN:
                signal.signal(one, handle)

    def complete(self) -> None:
        """The work is complete: from now on no request makes the process fail. The first one leaves it LEAVE_SECONDS, a
        later Ctrl-C ends it at once, with exit code 0."""
        self._complete = True
        if self.stopped:
            end_later(0)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """In the block a request raises nothing: the block checks `stopped`."""
        self._raises = False
        try:
            yield
        finally:
            self._raises = True


def end_later(code: int) -> None:
    """Ends this process in LEAVE_SECONDS, if it still runs then: threads of user code may never end."""
    timer = threading.Timer(LEAVE_SECONDS, os._exit, [code])
    timer.daemon = True
    timer.start()


def end_with_runner() -> None:
    """Asks Linux for SIGTERM when the process that runs this one dies: snakemake with ouro, a stage with snakemake.

    Does nothing in a process that another one started: a shell, or a job of SLURM.
    """
    if os.environ.get(RUNNER) == str(os.getppid()):
        die_with_parent(signal.SIGTERM)
