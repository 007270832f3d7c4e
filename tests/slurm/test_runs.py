"""Whole runs as jobs of a real SLURM without accounting: submitted, cancelled, lost, taken up again."""

import os
import re
import signal
import subprocess
import time

from tests.slurm.conftest import (
    BEGIN_SECONDS,
    END_SECONDS,
    ONLY_SFT,
    begin,
    cancelled_while_pending,
    finish,
    manifest,
    ouro,
    stage,
    steps,
    until,
)
from tests.toy.conftest import REPOSITORY
from tests.toy.kill import descendants

LONG = "stages.sft.buffer.total_steps=4000"  # minutes of work
SAVING = ("stages.sft.buffer.total_steps=200", "stages.sft.trainer.save_interval=5")
STATUS_SECONDS = 15  # at most, from the end of a job to the submission of the next one


def test_stages_that_load_a_model_are_jobs_and_the_others_run_here(cluster, tmp_path, record_property):
    done = finish(tmp_path, "buffer.total_steps=2")
    assert done.returncode == 0, done.stderr
    stages = ("tasks", "curate", "model", "sft", "rft", "report")
    assert [name for name in stages if "slurm_job" in manifest(tmp_path, name)] == ["sft", "rft"]
    assert not cluster.jobs()
    first, second = manifest(tmp_path, "sft"), manifest(tmp_path, "rft")
    noticed = cluster.time(second["slurm_job"], "SubmitTime") - cluster.time(first["slurm_job"], "EndTime")
    between = second["started"] - first["started"] - first["seconds"]
    record_property("end of a job until the next is submitted", f"{noticed:.0f} s")
    record_property("end of a stage until the next starts", f"{between:.0f} s")
    assert noticed <= STATUS_SECONDS


def test_a_job_cancelled_while_pending_ends_the_run_with_its_reason(cluster, root):
    printed = cancelled_while_pending(cluster, root)
    assert re.search(r"CANCELLED \(job \d+\)$", printed, re.M)


def test_a_running_job_is_not_requeued_and_cancelling_it_ends_the_run(cluster, root):
    process = begin(ouro(root, LONG, extra=ONLY_SFT), root / "out")
    until(lambda: steps(root), BEGIN_SECONDS, "a step")
    (number,) = cluster.jobs("RUNNING")
    refused = subprocess.run(["scontrol", "requeue", number], capture_output=True, text=True, check=False)
    assert refused.returncode, "SLURM requeued the job: it would run beside the one that snakemake submits"
    assert cluster.jobs() == [number]
    cluster.ask("scancel", number)
    assert process.wait(END_SECONDS) != 0
    assert re.search(r"sft failed: .*CANCELLED", (root / "out").read_text())


def test_a_stage_that_fails_is_not_submitted_again(cluster, root):
    done = finish(root, "stages.sft.cluster.slurm.setup_lines=[no_such_command]", extra=ONLY_SFT)
    assert done.returncode
    assert "job failed before" in done.stderr
    assert "submitted again" not in done.stderr
    assert not cluster.jobs()


def test_the_jobs_of_a_killed_ouro_go_on_and_the_same_command_waits_for_them(cluster, root):
    command = ouro(root, "stages.sft.buffer.total_steps=200", extra=ONLY_SFT)
    first = begin(command, root / "out")
    until(lambda: steps(root), BEGIN_SECONDS, "a step")
    (number,) = cluster.jobs("RUNNING")
    for process in (first.pid, *descendants(first.pid)):
        os.kill(process, signal.SIGKILL)
    second = begin(command, root / "out2")
    until(lambda: f"waiting for job {number}" in (root / "out2").read_text(), BEGIN_SECONDS, "the second to wait")
    assert cluster.jobs("RUNNING") == [number]
    assert second.wait(BEGIN_SECONDS) == 0, (root / "out2").read_text()
    assert manifest(root, "sft")["slurm_job"] == number


def test_two_commands_of_one_run_do_not_hold_two_nodes(cluster, root):
    command = ouro(root, "stages.sft.buffer.total_steps=200", extra=ONLY_SFT)
    first = begin(command, root / "out")
    until(lambda: cluster.jobs("RUNNING"), BEGIN_SECONDS, "a job")
    second = begin(command, root / "out2")
    until(lambda: "waiting for" in (root / "out2").read_text(), BEGIN_SECONDS, "the second to wait")
    most = 0
    while second.poll() is None or first.poll() is None:
        most = max(most, len(cluster.jobs("PENDING,RUNNING")))
        time.sleep(1.0)
    assert (first.returncode, second.returncode, most) == (0, 0, 1)


def test_a_run_past_its_time_limit_is_submitted_again_until_it_is_complete(cluster, root, record_property):
    process = begin(ouro(root, "stages.sft.buffer.total_steps=1200", "stages.sft.trainer.save_interval=20",
                         "cluster.slurm.runtime=1", extra=ONLY_SFT), root / "out")
    assert process.wait(BEGIN_SECONDS) == 0, (root / "out").read_text()
    again = re.findall("submitted again: it was (.*)", (root / "out").read_text())
    record_property("submitted again", "; ".join(again))
    assert again
    assert (stage(root, "sft") / "manifest.json").exists()


def test_a_failed_node_is_named_and_the_stage_goes_on_on_another(cluster, root):
    process = begin(ouro(root, *SAVING, extra=ONLY_SFT), root / "out")
    until(lambda: steps(root) > 7, BEGIN_SECONDS, "steps")
    node = cluster.ask("squeue", "-h", "-t", "R", "-o", "%N")
    cluster.fail_node(node)
    try:
        assert process.wait(BEGIN_SECONDS) == 0, (root / "out").read_text()
        assert "SLURM: NODE_FAIL" in (root / "out").read_text()
    finally:
        cluster.start_node(node)


def test_a_preempted_job_goes_on(cluster, root):
    process = begin(ouro(root, *SAVING, extra=ONLY_SFT), root / "out")
    until(lambda: steps(root) > 7, BEGIN_SECONDS, "steps")
    cluster.ask("sbatch", "-p", "urgent", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 5")
    assert process.wait(BEGIN_SECONDS) == 0, (root / "out").read_text()
    assert "SLURM: PREEMPTED" in (root / "out").read_text()


def test_plain_snakemake_refuses_sacct_without_accounting(cluster, tmp_path):
    done = subprocess.run(["snakemake", "--executor", "slurm", "--jobs", "1", "--config",
                           f"overrides=checkpoint_root_dir={tmp_path}"], cwd=REPOSITORY, capture_output=True, text=True,
                          check=False, env=os.environ | {"PATH": f"{REPOSITORY}/.venv/bin:{os.environ['PATH']}"})
    assert done.returncode == 2
    assert "--slurm-status-command squeue" in done.stderr
