"""`ouro stop`: the processes of a run, found by their locks, on this machine and on others."""

import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ouroboros.commands import cli
from ouroboros.pipeline.job import holders
from ouroboros.pipeline.job.ending import RUNNER
from tests.golden.messages import wording

HOLDS = """
import fcntl, pathlib, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
file.write(sys.argv[2]); file.flush()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def run(warmed_up):
    (Path(warmed_up.stages[-1]["directory"]) / "manifest.json").unlink()
    return warmed_up


@pytest.fixture
def hold():
    """hold(lock, text): a process that holds a lock and wrote this into it; {} is its own name."""
    started = []

    def start(lock, text="process {pid} on {host}", **environment):
        lock.parent.mkdir(parents=True, exist_ok=True)
        without = {name: value for name, value in os.environ.items() if name != RUNNER}
        program = f"import os\n{HOLDS}".replace("sys.argv[2]", "sys.argv[2].format(pid=os.getpid(), host=sys.argv[3])")
        started.append(subprocess.Popen([sys.executable, "-S", "-c", program, str(lock), text, platform.node()],
                                        stdout=subprocess.PIPE, text=True, env=without | environment))
        started[-1].stdout.readline()
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def stop(run) -> int:
    return cli.main(["stop", "first", "--root", str(run.root)])


def test_a_run_without_a_process_has_nothing_to_stop(run, capsys):
    assert stop(run) == 0
    wording(capsys.readouterr().out, "toy/first")


def test_the_process_that_runs_a_run_is_asked_and_waited_for(run, hold, capsys):
    process = hold(run.path / "processes" / "one.lock")
    assert stop(run) == 0
    assert process.wait(5) == -signal.SIGTERM
    assert f"asked process {process.pid} on {platform.node()} to end" in capsys.readouterr().out


def test_a_stage_that_was_started_by_hand_is_asked_and_what_it_saved_is_shown(run, hold, capsys):
    sft = Path(run.stages[-1]["directory"])
    process = hold(sft / ".lock")
    (sft / "stage.log").touch()
    os.utime(sft / "stage.log", (1, 1))
    (sft / "stage.error").write_text("interrupted by SIGTERM; step 3 is saved\nlog: ...\n")
    assert stop(run) == 0
    assert process.wait(5) == -signal.SIGTERM
    wording(capsys.readouterr().out, "SIGTERM", "3 is")


def test_a_stage_that_another_run_makes_is_left_alone(run, hold, capsys):
    process = hold(Path(run.stages[-1]["directory"]) / ".lock", **{RUNNER: str(os.getpid())})
    assert stop(run) == 1
    assert process.poll() is None
    wording(capsys.readouterr().out, "another")


def test_what_runs_on_another_machine_is_named_with_it(run, hold, capsys):
    process = hold(run.path / "processes" / "one.lock", "process 17 on node7")
    assert stop(run) == 1
    assert process.poll() is None
    wording(capsys.readouterr().out, "toy/first", "17 on", "node7; `ouro stop`")


def test_the_file_of_a_process_that_was_killed_is_removed(run, hold):
    process = hold(run.path / "processes" / "one.lock")
    assert [one.pid for one in holders.launches(run.path)] == [process.pid]
    process.kill()
    process.wait()
    time.sleep(0.1)
    assert holders.launches(run.path) == []
    assert list((run.path / "processes").iterdir()) == []


def test_status_shows_the_process_of_a_running_stage_and_what_comes_next(run, hold, capsys):
    process = hold(Path(run.stages[-1]["directory"]) / ".lock")
    run.report()
    run.view()
    assert cli.main(["status", "first", "--root", str(run.root)]) == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith("sft "))
    assert "running, step 4" in line
    assert f"process {process.pid} on {platform.node()}" in line
    assert out.endswith("next: report\n")
