"""rft with vLLM, killed at any moment and started again, ends as if it had never been killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.toy.conftest import REPOSITORY, copy_upstream, plan_in, stage_of
from tests.toy.kill import alive, descendants, killed, made, start, wait_until

pytestmark = pytest.mark.kill


def rft_in(root: Path, finished):
    plan = plan_in(root)
    plan.freeze()
    copy_upstream(finished.plan, plan, ("tasks", "curate", "model", "sft"))
    return stage_of(plan, "rft")


def test_killed_twice_it_ends_with_the_same_weights_and_rows(finished, tmp_path):
    """The original was never killed, but evaluated on the way, which this one is not: neither changes what it makes."""
    stage, directory = rft_in(tmp_path, finished), Path(stage_of(finished.plan, "rft").directory)
    killed(stage, "steps", 3)  # in the trainer's step 4
    killed(stage, "rollouts", 6)  # late in the explorer
    assert start(stage).wait(timeout=180) == 0
    assert made(Path(stage.directory)) == made(directory)
    assert not list(Path(stage.directory).rglob("*.tmp"))


@pytest.mark.parametrize("victim", ["explorer", "trainer"])
def test_a_dead_child_ends_the_stage_within_seconds_and_is_named(finished, tmp_path, victim):
    stage = rft_in(tmp_path, finished)
    process = subprocess.Popen([sys.executable, "-m", "ouroboros.stages.rft", stage.directory], cwd=REPOSITORY,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_until((Path(stage.directory) / f"{victim}.log").exists, 30, process)
    time.sleep(1.0)
    module = {"explorer": "ouroboros.stages.explore", "trainer": "ouroboros.stages.learn"}[victim]
    children = descendants(process.pid)
    target = next(p for p in children if module in Path(f"/proc/{p}/cmdline").read_text())
    begin = time.monotonic()
    os.kill(target, signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - begin < 10
    assert process.returncode == 2
    assert f"the {victim} of stage {Path(stage.directory).name} died" in errors
    assert f"{victim}.log" in errors
    assert f"python -m ouroboros.stages.rft {stage.directory}" in errors
    assert not alive(children)
