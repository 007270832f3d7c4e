"""Compares formulas in a few separate processes (operators/formula_worker.py), from any thread.

Each pair has its own limits of CPU time and memory; beyond them, the verdict is LIMIT and the process is replaced. The
processes start with the first pairs, as commands with a clean environment, and end with this process.
"""

import json
import os
import signal
import subprocess
import threading
from concurrent.futures import Future
from functools import lru_cache
from queue import SimpleQueue

from ouroboros.operators.formula_worker import LIMIT
from ouroboros.pipeline.store import launch
from ouroboros.pipeline.store.errors import StageError

MOST_WORKERS = 4
KEPT = ("LD_LIBRARY_PATH", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH")  # environment variables of a worker
MODULE = "ouroboros.operators.formula_worker"


class Workers:
    """Threads that pass pairs to one process each."""

    def __init__(self):
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # a forked process has none of the threads

    def _begin(self) -> None:
        self._waiting: SimpleQueue[tuple[Future, str]] = SimpleQueue()
        self._lock = threading.Lock()
        self._unfinished = self._threads = 0
        self.compare = lru_cache(4096)(self._compare)  # answers of a group are often equal

    def _compare(self, found: str, truth: str, seconds: float, evaluates: bool = True) -> "Future[str]":
        """The verdict, later. seconds: CPU time of the pair. evaluates: as in operators/formula_worker.py."""
        future: Future[str] = Future()
        self._waiting.put((future, json.dumps([found, truth, seconds, evaluates])))
        with self._lock:
            self._unfinished += 1
            begins = self._unfinished > self._threads < min(MOST_WORKERS, len(os.sched_getaffinity(0)))
            self._threads += begins
        if begins:
            threading.Thread(target=self._serve, daemon=True, name="formulas").start()
        return future

    def _serve(self) -> None:
        worker = _Worker()  # the kernel ends a process with the thread that started it: this one never ends
        while True:
            future, question = self._waiting.get()
            try:
                future.set_result(worker.ask(question))
            except Exception as error:  # whoever waits for the verdict raises it
                self.compare.cache_clear()  # asked again, the pair may have one
                future.set_exception(error)
            with self._lock:
                self._unfinished -= 1


class _Worker:
    def __init__(self):
        self.process: subprocess.Popen | None = None

    def ask(self, question: str) -> str:
        """The verdict on one pair. Raises StageError where no process can be started."""
        for _ in range(2):  # a process that something else ended says nothing about the pair
            if self.process is None or self.process.poll() is not None:
                self._start()
            if verdict := self._exchange(f"{question}\n"):
                return verdict
            if self.process.wait() == -signal.SIGPROF:
                break
        return LIMIT

    def _start(self) -> None:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        self.process = subprocess.Popen(
            launch.command(MODULE), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.PIPE, env=kept | {"PYTHONPATH": launch.python_path(), "PYTHONHASHSEED": "0"})
        if self.process.stdout.readline().strip() != "ready":
            last = self.process.stderr.read().strip().splitlines()[-1:]
            raise StageError("the process that compares formulas with math_verify ended with exit code "
                             f"{self.process.wait()}: {' '.join(last)}")

    def _exchange(self, line: str) -> str:
        """The line with which the process answers; empty when it ended."""
        try:
            self.process.stdin.write(line)
            self.process.stdin.flush()
        except OSError:
            return ""
        return self.process.stdout.readline().strip()


WORKERS = Workers()
