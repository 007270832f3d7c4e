"""Stages started by hand, and killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import equality
from ouroboros.pipeline.store import checkpoints, files, tables
from tests.toy.conftest import REPOSITORY


def start(stage, **environment: str) -> subprocess.Popen:
    """A stage as a user starts it by hand."""
    return subprocess.Popen([sys.executable, "-m", f"ouroboros.stages.{stage.kind}", stage.directory], cwd=REPOSITORY,
                            env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_until(condition, seconds: float, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the stage did not get that far"
        assert process.poll() is None, "the stage ended before it could be killed"
        time.sleep(0.005)


def killed(stage, name: str, step: int, **environment: str) -> None:
    """Starts a stage and kills it with SIGKILL as soon as `step` is in the table. None of its processes survives."""
    killed_when(stage, tables.step_file(Path(stage.directory), name, step).exists, **environment)


def killed_when(stage, condition, **environment: str) -> None:
    """As `killed`, as soon as the condition holds."""
    process = start(stage, **environment)
    wait_until(condition, 400, process)
    family = descendants(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 10.0  # agents end after the explorer, whose connection they lose
    while alive(family):
        assert time.monotonic() < deadline, "explorer or trainer outlived the stage"
        time.sleep(0.1)


def descendants(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    children = [int(word) for word in found.stdout.split()]
    return children + [d for child in children for d in descendants(child)]


def alive(pids: list[int]) -> list[int]:
    """Those that run; a zombie that nobody has waited for does not."""
    states = {p: Path(f"/proc/{p}/stat") for p in pids}
    return [p for p, stat in states.items() if stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"]


def made(directory: Path, *more: str) -> dict[str, object]:
    """All that must be the same after a kill: rows without measured times, weights, threads, checkpoints, no leftovers.

    more: further tables: `samples` and `scores`, which a setting adds to an rft stage without changing what it makes.
    """
    manifest = files.read_json(directory / files.MANIFEST)
    rows = {name: equality.rows(directory, name)
            for name in tables.LOCATIONS if name in more or name not in equality.EVALUATED}
    return rows | {"manifest": [{key: manifest.get(key) for key in ("weights_hash", "threads", "steps")}],
                   "checkpoints": checkpoints.complete_checkpoints(directory),
                   "leftovers": sorted(str(path.relative_to(directory)) for path in directory.rglob("*.tmp"))}
