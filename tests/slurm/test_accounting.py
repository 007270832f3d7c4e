"""Runs on a cluster with accounting: slurmdbd and MariaDB."""

from tests.slurm.conftest import cancelled_while_pending, finish, manifest

CLUSTER = {"accounting": True}


def test_a_run_follows_its_jobs_by_sacct_and_is_charged_to_its_account(cluster, root):
    done = finish(root, "buffer.total_steps=1", "cluster.slurm.account=lab")
    assert done.returncode == 0, done.stderr
    for name in ("sft", "rft"):
        number = manifest(root, name)["slurm_job"]
        assert cluster.ask("sacct", "-X", "-n", "-P", "-o", "State,Account", "-j", number) == "COMPLETED|lab"


def test_how_a_job_ended_is_read_from_accounting(cluster, root):
    assert "SLURM: CANCELLED" in cancelled_while_pending(cluster, root)


def test_an_account_of_somebody_else_is_refused_before_anything_runs(cluster, tmp_path):
    done = finish(tmp_path, "cluster.slurm.account=theirs")
    assert done.returncode == 2
    assert "cluster.slurm.account" in done.stderr
    assert not list(tmp_path.glob("store/*/manifest.json"))
