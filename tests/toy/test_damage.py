"""rft killed, its files damaged, and started again: it says so, and ends as if nothing had happened."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pipeline.store import checkpoints, files, tables
from tests.damage import flip
from tests.toy.conftest import REPOSITORY, copy_upstream, plan_in, stage_of
from tests.toy.kill import descendants, made, start, wait_until


def listening(pids: list[int]) -> set[str]:
    """The addresses at which these processes accept connections."""
    found = set()
    for pid in pids:
        try:
            found |= {one.laddr.ip for one in psutil.Process(pid).net_connections("inet") if one.status == "LISTEN"}
        except psutil.NoSuchProcess:
            continue
    return found


def interrupted(stage) -> set[str]:
    """Starts a stage and kills it after optimizer step 5; returns the addresses at which its processes listened."""
    process, found = start(stage), set()
    for name, step in (("steps", 1), ("steps", 5)):
        wait_until(tables.step_file(Path(stage.directory), name, step).exists, 400, process)
        found |= listening(descendants(process.pid))
    process.kill()
    process.wait()
    return found


def resumed(stage) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", f"stages.{stage.kind}", stage.directory], cwd=REPOSITORY,
                          env=os.environ, capture_output=True, text=True, check=False, timeout=300)


def rft_in(root: Path, finished):
    plan = plan_in(root)
    plan.freeze()
    copy_upstream(finished.plan, plan, ("tasks", "curate", "model", "sft"))
    return plan, stage_of(plan, "rft")


@pytest.mark.slow
def test_damaged_inputs_are_refused_and_damaged_checkpoints_and_rows_made_again(finished, tmp_path):
    plan, stage = rft_in(tmp_path, finished)
    directory = Path(stage.directory)
    assert interrupted(stage) <= {"127.0.0.1", "::1"}

    weights = Path(stage_of(plan, "sft").directory) / "model" / checkpoints.WEIGHTS
    flip(weights)
    refused = resumed(stage)
    assert refused.returncode == 2
    assert f"{weights} is damaged" in refused.stderr
    assert f"Delete {weights.parents[1]} and run the same command again" in refused.stderr
    flip(weights)  # as the stage would make it again

    newest = max((directory / "checkpoints").glob("step=*"))
    (state,) = (newest / "state").glob("zero*")
    flip(state)
    explored = max(tables.steps_present(directory, "experience"))
    shutil.rmtree(tables.step_file(directory, "experience", explored).parent)
    done = resumed(stage)
    assert done.returncode == 0, done.stderr
    assert f"{state} is damaged" in done.stderr
    assert "goes on from the checkpoint of step 2 instead" in done.stderr
    assert made(directory) == made(Path(stage_of(finished.plan, "rft").directory))


@pytest.mark.kill
def test_two_ranks_listen_to_this_machine_alone_and_find_each_other_again(finished, tmp_path):
    plan = plan_in(tmp_path, "trainer.ranks=2")
    plan.freeze()
    copy_upstream(finished.plan, plan, ("tasks", "curate", "model"))
    stage = stage_of(plan, "sft")
    assert interrupted(stage) <= {"127.0.0.1", "::1"}
    assert resumed(stage).returncode == 0
    assert files.is_complete(Path(stage.directory))
