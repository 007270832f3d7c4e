"""A run that is asked to end, by any signal to any of its processes: it saves its last step and goes on there.

Ctrl-C in `ouro` is a case of `make test`, as is SIGTERM to a stage in test_damage.py.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ouroboros.pipeline.store import checkpoints, files, tables
from tests.toy.conftest import REPOSITORY, copy_upstream, plan_in, small, stage_of
from tests.toy.kill import alive, descendants, made, start, wait_until

UPSTREAM = ("tasks", "curate", "model", "sft", "evaluate_sft")
MODULES = {"snakemake": "snakemake", "stage": "ouroboros.stages.rft", "trainer": "ouroboros.stages.learn",
           "explorer": "ouroboros.stages.explore",
           "evaluator": "ouroboros.stages.score"}


def rft_in(root: Path, finished, *overrides: str):
    plan = plan_in(root, *overrides)
    plan.freeze()
    copy_upstream(finished.plan, plan, UPSTREAM)
    return stage_of(plan, "rft")


def reached(stage, step: int):
    return tables.step_file(Path(stage.directory), "steps", step).exists


def assert_as_undisturbed(stage, finished):
    """The stage goes on, and its weights, rows and checkpoints are those of a stage that was never asked to end."""
    other = Path(stage_of(finished.plan, "rft").directory)
    assert start(stage).wait(timeout=180) == 0
    assert made(Path(stage.directory)) == made(other)
    assert checkpoints.complete_checkpoints(Path(stage.directory)) == checkpoints.complete_checkpoints(other)


def ouro(root: Path, *words: str) -> subprocess.Popen:
    """`ouro` as typed in a terminal: it receives Ctrl-C also where the tests run in the background of a script."""
    return subprocess.Popen([sys.executable, "-m", "ouroboros", *words], cwd=REPOSITORY, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, start_new_session=True,
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))


def process_of(run: subprocess.Popen, name: str) -> int:
    if name == "ouro":
        return run.pid
    return next(pid for pid in descendants(run.pid) if MODULES[name] in Path(f"/proc/{pid}/cmdline").read_text())


def stopped(process: subprocess.Popen, child: str) -> tuple[int, str]:
    """Stops a child of a stage, which then fails; returns the child's process and what the stage printed."""
    target = process_of(process, child)
    os.kill(target, signal.SIGSTOP)
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 2
    return target, errors


@pytest.mark.parametrize(("victim", "number", "code"), [
    pytest.param("ouro", signal.SIGINT, 130, marks=pytest.mark.slow),
    *(pytest.param(*one, marks=pytest.mark.kill) for one in (
        ("ouro", signal.SIGHUP, 129), ("ouro", signal.SIGKILL, -9), ("snakemake", signal.SIGTERM, 143),
        ("snakemake", signal.SIGINT, 130), ("snakemake", signal.SIGKILL, 137), ("stage", signal.SIGTERM, 143),
        ("trainer", signal.SIGINT, 130), ("explorer", signal.SIGTERM, 143)))])
def test_a_signal_to_any_process_ends_all_of_a_run_softly(finished, tmp_path, victim, number, code):
    stage = rft_in(tmp_path, finished)
    run = ouro(tmp_path, "run", f"checkpoint_root_dir={tmp_path}", *small())
    wait_until(reached(stage, 3), 400, run)
    family = descendants(run.pid)
    os.kill(process_of(run, victim), number)
    output, _ = run.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while alive(family) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert run.returncode == code
    assert not alive(family)
    if not files.is_complete(Path(stage.directory)):  # a fast machine may have made the last step meanwhile
        step = checkpoints.complete_checkpoints(Path(stage.directory))[-1]
        assert step >= 3
        if number != signal.SIGKILL:
            assert f"rft: interrupted by {number.name}; step {step} is saved" in output
            assert "go on: ouro" in output
    assert_as_undisturbed(stage, finished)


@pytest.mark.kill
def test_a_detached_run_is_stopped_from_another_terminal(finished, tmp_path):
    stage = rft_in(tmp_path, finished)
    begun = ouro(tmp_path, "run", "--detach", f"checkpoint_root_dir={tmp_path}", *small())
    output, _ = begun.communicate(timeout=60)
    assert begun.returncode == 0
    assert f"stop ouroboros/toy --root {tmp_path}" in output
    pid = int(output.partition("process ")[2].partition(";")[0])
    deadline = time.monotonic() + 200
    while not reached(stage, 2)() and time.monotonic() < deadline:
        time.sleep(0.05)
    family = [pid, *descendants(pid)]
    stopped = ouro(tmp_path, "stop", "toy", "--root", str(tmp_path))
    output, _ = stopped.communicate(timeout=100)
    assert stopped.returncode == 0
    assert re.search(r"SIGTERM; step \d", output)
    time.sleep(3.0)
    assert not alive(family)
    logs, _ = ouro(tmp_path, "logs", "toy", "--root", str(tmp_path), "--stage", "rft", "--level",
                   "error").communicate(timeout=60)
    assert "rft: ERROR interrupted" in logs
    assert_as_undisturbed(stage, finished)


@pytest.mark.kill
def test_a_stopped_evaluation_is_named_and_begins_again(finished, tmp_path):
    plan = plan_in(tmp_path, "explorer.step_timeout_seconds=5")
    plan.freeze()
    copy_upstream(finished.plan, plan, UPSTREAM[:-1])
    stage = stage_of(plan, "evaluate_sft")
    process = subprocess.Popen([sys.executable, "-m", "ouroboros.stages.evaluate", stage.directory], cwd=REPOSITORY,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_until((Path(stage.directory) / "evaluator.activity").exists, 60, process)
    target, errors = stopped(process, "evaluator")
    assert f"evaluator of stage {Path(stage.directory).name} hangs: " in errors
    assert f"process {target} (ouroboros.stages.score) is stopped" in errors
    assert start(stage).wait(timeout=180) == 0
    mine, other = Path(stage.directory), Path(stage_of(finished.plan, "evaluate_sft").directory)
    assert made(mine, "samples", "scores") == made(other, "samples", "scores")
