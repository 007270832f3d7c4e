"""Whole runs as jobs of a real SLURM without accounting: submitted, cancelled, lost, taken up again."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pipeline.job import slurm
from tests.slurm.conftest import begin, manifest, ouro, stage
from tests.toy.conftest import REPOSITORY
from tests.toy.kill import descendants

LONG = "stages.sft.buffer.total_steps=4000"  # minutes of work


def until(holds, seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.5)


def running(cluster) -> list[str]:
    return cluster.ask("squeue", "-h", "-t", "R", "-o", "%i").split()


def listed(cluster) -> list[str]:
    return cluster.ask("squeue", "-h", "-o", "%i").split()


def steps(root: Path) -> int:
    return len(list(root.glob("store/sft-*/steps/*")))


def test_stages_that_load_a_model_are_jobs_and_the_others_run_here(cluster, tmp_path):
    done = subprocess.run(ouro(tmp_path, "buffer.total_steps=2"), cwd=REPOSITORY, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    stages = ("tasks", "curate", "model", "sft", "rft", "report")
    assert [name for name in stages if "slurm_job" in manifest(tmp_path, name)] == ["sft", "rft"]
    assert not listed(cluster)


def test_a_cancelled_job_ends_the_run_with_its_reason(cluster, tmp_path):
    process = begin(ouro(tmp_path, LONG), tmp_path / "out")
    until(lambda: steps(tmp_path), 120, "a step")
    (number,) = running(cluster)
    cluster.ask("scancel", number)
    assert process.wait(60) != 0
    last = (tmp_path / "out").read_text().splitlines()[-8:]
    assert any("sft" in line and "CANCELLED" in line for line in last), last


def test_the_jobs_of_a_killed_ouro_go_on_and_the_same_command_waits_for_them(cluster, tmp_path):
    command = ouro(tmp_path, "stages.sft.buffer.total_steps=150", "buffer.total_steps=1")
    first = begin(command, tmp_path / "out")
    until(lambda: steps(tmp_path), 120, "a step")
    (number,) = running(cluster)
    for process in (first.pid, *descendants(first.pid)):
        os.kill(process, signal.SIGKILL)
    second = begin(command, tmp_path / "out2")
    until(lambda: f"waiting for job {number}" in (tmp_path / "out2").read_text(), 60, "the second to wait")
    assert running(cluster) == [number]
    assert second.wait(240) == 0, (tmp_path / "out2").read_text()
    assert manifest(tmp_path, "sft")["slurm_job"] == number


def test_two_commands_of_one_run_do_not_hold_two_nodes(cluster, tmp_path):
    command = ouro(tmp_path, "stages.sft.buffer.total_steps=150", "buffer.total_steps=1")
    first = begin(command, tmp_path / "out")
    until(lambda: running(cluster), 120, "a job")
    second = begin(command, tmp_path / "out2")
    until(lambda: "waiting for" in (tmp_path / "out2").read_text(), 60, "the second to wait")
    most = 0
    while second.poll() is None or first.poll() is None:
        most = max(most, len(listed(cluster)))
        time.sleep(1.0)
    assert (first.returncode, second.returncode, most) == (0, 0, 1)


def test_a_run_past_its_time_limit_is_submitted_again_until_it_is_complete(cluster, tmp_path):
    command = ouro(tmp_path, "stages.sft.buffer.total_steps=60", "buffer.total_steps=1", "cluster.slurm.runtime=1",
                   "stages.sft.trainer.save_interval=5")
    process = begin(command, tmp_path / "out")
    assert process.wait(500) == 0, (tmp_path / "out").read_text()
    assert "ended by SLURM: TIMEOUT" in (tmp_path / "out").read_text()
    assert (stage(tmp_path, "sft") / "manifest.json").exists()


def test_a_failed_node_is_named_and_the_stage_goes_on_on_another(cluster, tmp_path):
    process = begin(ouro(tmp_path, "stages.sft.buffer.total_steps=80", "buffer.total_steps=1",
                         "stages.sft.trainer.save_interval=5"), tmp_path / "out")
    until(lambda: steps(tmp_path) > 12, 120, "steps")
    node = cluster.ask("squeue", "-h", "-t", "R", "-o", "%N")
    cluster.fail_node(node)
    try:
        assert process.wait(300) == 0, (tmp_path / "out").read_text()
        assert "ended by SLURM: NODE_FAIL" in (tmp_path / "out").read_text()
    finally:
        cluster.start_node(node)


def test_a_preempted_job_goes_on(cluster, tmp_path):
    process = begin(ouro(tmp_path, "stages.sft.buffer.total_steps=80", "buffer.total_steps=1",
                         "stages.sft.trainer.save_interval=5"), tmp_path / "out")
    until(lambda: steps(tmp_path) > 12, 120, "steps")
    cluster.ask("sbatch", "-p", "urgent", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 10")
    assert process.wait(300) == 0, (tmp_path / "out").read_text()
    assert "ended by SLURM: PREEMPTED" in (tmp_path / "out").read_text()


def test_plain_snakemake_refuses_sacct_without_accounting(cluster, tmp_path):
    done = subprocess.run(["snakemake", "--executor", "slurm", "--jobs", "1", "--config",
                           f"overrides=checkpoint_root_dir={tmp_path}"], cwd=REPOSITORY, capture_output=True, text=True,
                          check=False, env=os.environ | {"PATH": f"{REPOSITORY}/.venv/bin:{os.environ['PATH']}"})
    assert done.returncode == 2
    assert "--slurm-status-command squeue" in done.stderr


@pytest.mark.parametrize(("limit", "minutes"), [("1:00:00", 60), ("2-00:00:00", 2880), ("30:00", 30), ("20", 1),
                                                ("infinite", None)])
def test_time_limits_of_sinfo(limit, minutes):
    assert slurm._minutes(limit) == minutes
