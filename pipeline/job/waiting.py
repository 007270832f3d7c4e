"""Waits for another process's file, with a timeout and an error that names the process."""

import time
from collections.abc import Callable
from pathlib import Path

from ouroboros.pipeline.store.errors import StageError

SOONEST, LATEST = 0.001, 0.05  # seconds between two checks: a fiftieth of the time waited, within these bounds


def wait_for(path: Path, timeout: float, what: str, log_file: Path, check: Callable[[], None] = lambda: None) -> float:
    """Returns the seconds waited until `path` exists. Raises StageError after `timeout` seconds.

    The death of the other process needs no check here: the supervisor of the stage ends both. `check` is called while
    waiting and may raise, for work of this process that the other one may depend on.
    """
    return wait_until(path.exists, timeout, f"{what}: {path}", log_file, check)


def wait_until(
    is_there: Callable[[], bool], timeout: float, what: str, log_file: Path, check: Callable[[], None] = lambda: None
) -> float:
    """Waits like `wait_for`, for a condition that is not the existence of a single file."""
    begin = time.perf_counter()
    while not is_there():
        check()
        waited = time.perf_counter() - begin
        if waited > timeout:
            raise StageError(f"waited {timeout:.0f} s (synchronizer.sync_timeout) for {what} did not come. "
                             f"Look at {log_file}.")
        time.sleep(min(max(waited / 50, SOONEST), LATEST))
    return time.perf_counter() - begin
