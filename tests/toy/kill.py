"""Stages started by hand, and killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from pipeline.store import files, tables
from tests.toy.conftest import REPOSITORY, table

TIMES = ("seconds", "peak_memory_gib")


def start(stage, **environment: str) -> subprocess.Popen:
    """A stage as a user starts it by hand."""
    return subprocess.Popen([sys.executable, "-m", f"stages.{stage.kind}", stage.directory], cwd=REPOSITORY,
                            env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_until(condition, seconds: float, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the stage did not get that far"
        assert process.poll() is None, "the stage ended before it could be killed"
        time.sleep(0.005)


def killed(stage, name: str, step: int, **environment: str) -> None:
    """Starts a stage and kills it with SIGKILL as soon as `step` is in the table. None of its processes survives."""
    process = start(stage, **environment)
    wait_until(tables.step_file(Path(stage.directory), name, step).exists, 400, process)
    family = descendants(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(1.0)
    assert not alive(family), "explorer or trainer outlived the stage"


def descendants(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    children = [int(word) for word in found.stdout.split()]
    return children + [d for child in children for d in descendants(child)]


def alive(pids: list[int]) -> list[int]:
    """Those that run; a zombie that nobody has waited for does not."""
    states = {p: Path(f"/proc/{p}/stat") for p in pids}
    return [p for p, stat in states.items() if stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"]


def experience(directory: str) -> list[dict]:
    """Rows of the table without the time of their writing."""
    return [{c: v for c, v in row.items() if c != "unix_seconds"} for row in table(Path(directory), "experience")]


def made(directory: Path) -> dict[str, list]:
    """All that must be the same after a kill: tables without times, and the hash of the weights."""
    found = {name: table(directory, name) for name in ("trained", "reference", "teacher")}
    steps = [{c: v for c, v in row.items() if not c.endswith(TIMES)} for row in table(directory, "steps")]
    manifest = files.read_json(directory / files.MANIFEST)
    return found | {"steps": steps, "experience": experience(str(directory)), "weights": [manifest["weights_hash"]],
                    "threads": [manifest["threads"]]}
