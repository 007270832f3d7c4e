"""Killed at any moment and started again, a stage ends as if it had never been killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.store import files, records, tables
from tests.toy.conftest import REPOSITORY, copy_upstream, plan_in, stage_of

pytestmark = pytest.mark.slow

TIMES = {"unix_seconds"}


def start(stage) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", f"stages.{stage.kind}", stage.directory], cwd=REPOSITORY,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_until(condition, seconds: float, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the stage did not get that far"
        assert process.poll() is None, "the stage ended before it could be killed"
        time.sleep(0.005)


def descendants(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    children = [int(word) for word in found.stdout.split()]
    return children + [d for child in children for d in descendants(child)]


def alive(pids: list[int]) -> list[int]:
    """Those that run; a zombie that nobody has waited for does not."""
    states = {p: Path(f"/proc/{p}/stat") for p in pids}
    return [p for p, stat in states.items() if stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"]


def experience(directory: str) -> list[dict]:
    rows = []
    for path in sorted(Path(directory).glob(tables.LOCATIONS["experience"])):
        rows += tables.read(path, records.Experience).drop_columns(list(TIMES)).to_pylist()
    return rows


def test_killed_twice_it_ends_with_the_same_weights_and_rows(finished, tmp_path):
    """The original was never killed, but evaluated on the way, which this one is not: neither changes what it makes."""
    _, plan, _ = finished
    again = plan_in(tmp_path)
    again.freeze()
    copy_upstream(plan, again, ("tasks", "curate", "model", "sft"))
    stage, original = stage_of(again, "rft"), stage_of(plan, "rft")
    directory = Path(stage.directory)
    for table, step in (("steps", 3), ("rollouts", 6)):  # once in the trainer's step 4, once late in the explorer
        process = start(stage)
        wait_until(tables.step_file(directory, table, step).exists, 120, process)
        family = descendants(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        time.sleep(1.0)
        assert not alive(family), "explorer or trainer outlived the stage"
        if files.is_complete(directory):  # it was faster than the signal
            break
    done = start(stage)
    assert done.wait(timeout=180) == 0
    assert (files.read_json(directory / "manifest.json")["weights_hash"]
            == files.read_json(Path(original.directory) / "manifest.json")["weights_hash"])
    assert experience(stage.directory) == experience(original.directory)
    assert not list(directory.rglob("*.tmp"))


@pytest.mark.parametrize("victim", ["explorer", "trainer"])
def test_a_dead_child_ends_the_stage_within_seconds_and_is_named(finished, tmp_path, victim):
    _, plan, _ = finished
    again = plan_in(tmp_path)
    again.freeze()
    copy_upstream(plan, again, ("tasks", "curate", "model", "sft"))
    stage = stage_of(again, "rft")
    process = subprocess.Popen([sys.executable, "-m", "stages.rft", stage.directory], cwd=REPOSITORY,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_until((Path(stage.directory) / f"{victim}.log").exists, 30, process)
    time.sleep(1.0)
    module = {"explorer": "stages.explore", "trainer": "stages.learn"}[victim]
    children = descendants(process.pid)
    target = next(p for p in children if module in Path(f"/proc/{p}/cmdline").read_text())
    begin = time.monotonic()
    os.kill(target, signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - begin < 10
    assert process.returncode == 2
    assert f"the {victim} of stage {Path(stage.directory).name} died" in errors
    assert f"{victim}.log" in errors
    assert f"python -m stages.rft {stage.directory}" in errors
    assert not alive(children)
