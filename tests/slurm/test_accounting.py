"""Runs on a cluster with accounting: slurmdbd and MariaDB."""

from tests.slurm.conftest import ONLY_SFT, begin, finish, manifest, ouro, until

CLUSTER = {"accounting": True}


def test_a_run_follows_its_jobs_by_sacct_and_is_charged_to_its_account(cluster, tmp_path):
    done = finish(tmp_path, "buffer.total_steps=1", "cluster.slurm.account=lab")
    assert done.returncode == 0, done.stderr
    for name in ("sft", "rft"):
        number = manifest(tmp_path, name)["slurm_job"]
        assert cluster.ask("sacct", "-X", "-n", "-P", "-o", "State,Account", "-j", number) == "COMPLETED|lab"


def test_how_a_job_ended_is_read_from_accounting(cluster, tmp_path):
    cluster.fill()
    process = begin(ouro(tmp_path, extra=ONLY_SFT), tmp_path / "out")
    until(lambda: cluster.jobs("PENDING"), 240, "a pending job")
    cluster.ask("scancel", *cluster.jobs("PENDING"))
    try:
        assert process.wait(120) != 0
        assert "ended by SLURM: CANCELLED" in (tmp_path / "out").read_text()
    finally:
        cluster.empty()


def test_an_account_of_somebody_else_is_refused_before_anything_runs(cluster, tmp_path):
    done = finish(tmp_path, "cluster.slurm.account=theirs")
    assert done.returncode == 2
    assert "cluster.slurm.account" in done.stderr
    assert not list(tmp_path.glob("store/*/manifest.json"))
