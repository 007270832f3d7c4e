"""rft killed, damaged and asked to end, and started again each time: it says so, and ends as if nothing had happened.

It is started by hand, from a shell that sets other numbers of threads than Snakemake, and publishes weights as deltas;
neither changes what it makes.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ouroboros.commands import cli
from ouroboros.pipeline.store import checkpoints, files, tables, tensor_files, versions
from tests.damage import flip
from tests.toy.conftest import REPOSITORY, copy_upstream, plan_in, stage_of, table
from tests.toy.kill import alive, descendants, made, start, wait_until

DELTAS = ("synchronizer.publish=delta", "synchronizer.keep=all")
SHELL = {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}
LOOPBACK = {"127.0.0.1", "::1"}


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
    process, found = start(stage, **SHELL), set()
    for step in (1, 3):
        wait_until(tables.step_file(Path(stage.directory), "steps", step).exists, 400, process)
        found |= listening(descendants(process.pid))
    wait_until(tables.step_file(Path(stage.directory), "steps", 5).exists, 400, process)
    process.kill()  # at once: a checkpoint of step 6 must not follow
    process.wait()
    return found


def launched(stage) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", f"ouroboros.stages.{stage.kind}", stage.directory], cwd=REPOSITORY,
                            env=os.environ | SHELL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def rft_in(root: Path, finished, *overrides: str):
    plan = plan_in(root, *DELTAS, *overrides)
    plan.freeze()
    copy_upstream(finished.plan, plan, ("tasks", "curate", "model", "sft"))
    return plan, stage_of(plan, "rft")


@pytest.mark.slow
def test_damaged_and_asked_to_end_a_stage_makes_the_same(finished, tmp_path):
    plan, stage = rft_in(tmp_path, finished)
    directory = Path(stage.directory)
    assert interrupted(stage) <= LOOPBACK

    weights = Path(stage_of(plan, "sft").directory) / "model" / checkpoints.WEIGHTS
    flip(weights)
    refused = launched(stage)
    _, errors = refused.communicate(timeout=300)
    assert refused.returncode == 2
    assert f"{weights} is damaged" in errors
    assert f"Delete {weights.parents[1]} and" in errors
    flip(weights)  # as the stage would make it again

    newest = max((directory / "checkpoints").glob("step=*"))
    (state,) = (newest / "masters").glob("zero*")
    flip(state)
    for explored in tables.steps_present(directory, "experience"):
        if explored > 3:  # the trainer waits for the fourth while it is asked to end
            tables.step_file(directory, "experience", explored).unlink()
    rft_in(tmp_path, finished, "trainer.save_interval=100")  # from here on only the end of a launch saves
    process = launched(stage)
    wait_until(lambda: tables.steps_present(directory, "steps") == [1, 2], 400, process)
    wait_until(tables.step_file(directory, "steps", 3).exists, 400, process)
    family = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert not alive(family)
    assert f"{state} is damaged" in errors
    assert "step 2 instead" in errors
    kept, saved = checkpoints.complete_checkpoints(directory)
    assert kept == 2 < saved < 6
    assert f"SIGTERM; step {saved} is saved\n" in (directory / "stage.error").read_text()

    assert start(stage, **SHELL).wait(timeout=400) == 0
    assert f"resumes at step {saved + 1}:" in (directory / "stage.log").read_text()
    undisturbed = made(Path(stage_of(finished.plan, "rft").directory))  # with a checkpoint at every second step
    assert made(directory) == undisturbed | {"checkpoints": [2, 6]}  # hashes of weights too
    assert_every_policy_is_kept(tmp_path, directory)


def assert_every_policy_is_kept(root: Path, directory: Path) -> None:
    """The first as a whole, the second as a delta; `ouro weights` makes the file of each."""
    kept = versions.numbers(directory)
    hashes = {row["weights_version"]: row["weights_hash"] for row in table(directory, "experience")}
    assert kept == sorted(hashes)
    assert [(versions.version_directory(directory, one) / versions.DELTA).exists() for one in kept[:2]] == [False, True]
    for step in kept[:2]:
        out = root / f"out{step}"
        assert cli.main(["weights", "toy", "--root", str(root), "--step", str(step), "--out", str(out)]) == 0
        assert versions.hash_of(tensor_files.read(out / checkpoints.WEIGHTS)) == hashes[step]


@pytest.mark.kill
def test_two_ranks_listen_to_this_machine_alone_and_find_each_other_again(finished, tmp_path):
    plan = plan_in(tmp_path, "trainer.ranks=2")
    plan.freeze()
    copy_upstream(finished.plan, plan, ("tasks", "curate", "model"))
    stage = stage_of(plan, "sft")
    assert interrupted(stage) <= LOOPBACK
    assert start(stage).wait(timeout=400) == 0
    assert files.is_complete(Path(stage.directory))
