"""Sends metrics, and tables of sampled rollouts, to the monitor of a run (sinks.py) without ever delaying a stage.

    with open_tracker(context) as tracker:
        tracker.log({"actor/loss": 1.0}, step=3)

The tables are the record; a monitor is a mirror of them. So a monitor never slows or stops a stage: a thread opens it
(importing MLflow takes 2 s) and writes in batches, and failures are only logged.
"""

import math
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.job.metrics import score_metrics
from ouroboros.pipeline.job.sinks import SINKS, Row
from ouroboros.pipeline.settings.monitors import MONITORS, check_monitor
from ouroboros.pipeline.store import tables
from ouroboros.pipeline.store.records import Experience, Score

FLUSH_SECONDS = 3.0
LAST_FLUSH_SECONDS = 30.0  # how long the end of a stage waits for a slow monitor
ROLLOUTS = 8  # in a table of sampled rollouts
MOST_TABLES = 16  # that wait for a monitor; older ones are left out
SHOWN = ("task_id", "run_index", "prompt", "response", "reward", "status")  # its columns

# ---------------------------------------------------------------------------------------------------------- tracker


class NoTracker:
    """The tracker for monitor_type=none, and the interface of all trackers."""

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Records metrics of a step."""

    def log_scores(self, scores: Iterable[Score], step: int) -> None:
        """Records the scores of an evaluation. step: of the training that produced the model; 0 without one."""
        self.log(score_metrics(scores), step)

    def log_rollouts(self, read: Callable[[], list[dict]], step: int) -> None:
        """Records a table of rollouts. read: gives its rows (`sampled_rollouts`), called where no stage waits."""

    def log_earlier(self, rows: Iterable[tuple[dict[str, float], int]]) -> None:
        """Records metrics of steps that an earlier launch made: those that it did not write, if the sink can tell."""

    def close(self, failed: bool) -> None:
        """Writes pending metrics. failed: whether the stage ended with an error."""


class Tracker(NoTracker):
    """Queues metrics without blocking; a background thread writes them to a sink in batches."""

    def __init__(self, sink, log):
        self.sink, self.log_to = sink, log
        self._pending: list[Row] = []
        self._rollouts: deque[tuple[Callable[[], list[dict]], int]] = deque(maxlen=MOST_TABLES)
        self._earlier: Iterable[tuple[dict[str, float], int]] = ()
        self._guard, self._end = threading.Lock(), threading.Event()
        self._is_open, self._last_problem = False, ""
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._thread.start()

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Records metrics of a step without blocking. Values that are not finite are left out."""
        with self._guard:
            self._pending += self._rows(metrics, step)

    def log_rollouts(self, read: Callable[[], list[dict]], step: int) -> None:
        self._rollouts.append((read, step))

    def log_earlier(self, rows: Iterable[tuple[dict[str, float], int]]) -> None:
        with self._guard:
            self._earlier = rows

    def _rows(self, metrics: dict[str, float], step: int) -> list[Row]:
        now = int(time.time() * 1000)
        return [(name, float(value), step, now) for name, value in metrics.items() if math.isfinite(value)]

    def _work(self) -> None:
        while not self._end.wait(FLUSH_SECONDS if self._is_open else 0):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        """Opens the sink if necessary and writes pending metrics; keeps them for the next time on failure."""
        try:
            if not self._is_open:
                self.sink.open()
                self._is_open = True
            with self._guard:
                earlier, self._earlier = self._earlier, ()
            if lacks := getattr(self.sink, "lacks", None):
                found = [row for metrics, step in earlier for row in self._rows(metrics, step) if lacks(row)]
                with self._guard:
                    self._pending = found + self._pending
            if rows := list(self._pending):
                for problem in self.sink.write(rows) or ():
                    self.log_to.warning("the monitor refuses one metric (%s); it is in the stage's tables", problem)
                with self._guard:
                    del self._pending[: len(rows)]
            for read, step in tuple(self._rollouts):
                self.sink.write_rollouts(read(), step)
                with suppress(ValueError):  # a newer table has pushed it out
                    self._rollouts.remove((read, step))
        except Exception as error:  # servers, networks and client libraries may raise anything: the stage continues
            self._warn_once(f"{type(error).__name__}: {error}")
            self._end.wait(FLUSH_SECONDS)

    def _warn_once(self, problem: str) -> None:
        if problem != self._last_problem:
            self._last_problem = problem
            self.log_to.warning("the monitor does not take what it is sent (%s); it stays in the stage's tables and is "
                                "sent again later", problem)

    def close(self, failed: bool) -> None:
        """Writes the rest and closes the sink, waiting for at most LAST_FLUSH_SECONDS."""
        self._end.set()
        self._thread.join(LAST_FLUSH_SECONDS)
        if unsent := len(self._pending) + len(self._rollouts):
            self.log_to.warning("%d metrics and tables never reached the monitor; they are in the stage's tables",
                                unsent)
        if self._thread.is_alive() or not self._is_open:
            return
        try:
            self.sink.close(failed)
        except Exception as error:  # as in _flush
            self._warn_once(f"{type(error).__name__}: {error}")


@contextmanager
def open_tracker(context: Context) -> Iterator[NoTracker]:
    """Provides a stage's tracker for the block. Raises ConfigError when the monitor is missing or misconfigured.

    Open it in the process that logs, after any fork: it has a thread.
    """
    kind = context.config.monitor.monitor_type
    arguments = context.config.monitor.monitor_args
    check_monitor(kind, arguments)
    for name, variable in MONITORS[kind][3].items():  # the libraries read their secrets there
        if name in arguments:
            os.environ[variable] = str(arguments[name])
    tracker = NoTracker() if kind == "none" else Tracker(SINKS[kind](context), context.log)
    failed = True
    try:
        yield tracker
        failed = False
    finally:
        tracker.close(failed)


def sampled_rollouts(file: Path, step: int) -> list[dict]:
    """Returns ROLLOUTS rows of an explorer step's table, drawn by the step, with the columns of SHOWN."""
    rows = tables.read(file, Experience).select(SHOWN).to_pylist()
    return random.Random(step).sample(rows, min(ROLLOUTS, len(rows)))
