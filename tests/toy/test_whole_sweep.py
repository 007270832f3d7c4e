"""Sweeps through the real Snakefile: what is shared is made once, what fails stops only what needs it.

The stages are fakes; test_parts.py has a sweep with real ones.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ouroboros.commands.run.invoke import HOME
from ouroboros.pipeline.results import sweep_view
from tests import fake_stages


def typed(place: Path, *words: str) -> subprocess.CompletedProcess:
    """`python WORDS` in a directory, where `stages` may be fakes."""
    environment = os.environ | {"PYTHONPATH": f"{HOME}:{place}"}  # tests, for the fakes
    return subprocess.run([sys.executable, *words], cwd=place, env=environment, capture_output=True, text=True,
                          check=False)


def made(place: Path) -> Counter:
    """How often each stage was made, by its name."""
    lines = (place / "made.txt").read_text().split()
    assert len(set(lines)) == len(lines), "a stage was made twice"
    return Counter(line.rsplit("-", 1)[0] for line in lines)


@pytest.fixture
def place(tmp_path):
    fake_stages.write(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_failing_point_leaves_the_others_alone(place):
    done = typed(place, "-m", "ouroboros", "run", "-m", "name=s", "algorithm.optimizer.lr=0.1,0.5,0.3")
    assert done.returncode == 1
    assert made(place) == {"tasks": 1, "curate": 1, "model": 1, "sft": 1, "evaluate_sft": 1, "rft": 3,
                           "evaluate_rft": 2, "report": 2}
    table = [line.split() for line in done.stdout.splitlines()]
    assert [(row[0][-6:], row[1]) for row in table[2:5]] == [("lr=0.1", "0.9"), ("lr=0.3", "0.7"), ("lr=0.5", "NULL")]
    assert "complete; 14 stages" in done.stdout
    assert "rft failed (lr=0.5)" in done.stderr
    assert "11 of 14" in done.stderr
    assert "Error in rule" not in done.stderr
    assert len(done.stderr.splitlines()) < 15  # times before and after, and why a point failed
    (log,) = (place / "runs/ouroboros/s/logs").iterdir()
    assert "rule rft" in log.read_text()
    assert str(log.relative_to(place)) in done.stderr.splitlines()[-2]
    assert "1 of 3" in (place / "runs/ouroboros/s/compare.html").read_text()


@pytest.mark.slow
def test_plain_snakemake_takes_a_sweep_and_a_second_one_makes_only_what_is_new(place):
    snakemake = ("-m", "snakemake", "--snakefile", str(HOME / "Snakefile"), "--directory", str(place), "--cores", "2")
    done = typed(place, *snakemake, "--config", "overrides=-m name=s algorithm.optimizer.lr=0.1,0.5")
    assert done.returncode == 1
    assert "rft failed (lr=0.5)" in done.stderr
    assert made(place)["rft"] == 2
    assert sweep_view.find(place, "s").entries[0].view.complete
    again = typed(place, "-m", "ouroboros", "run", "-v", "-m", "name=s", "algorithm.optimizer.lr=0.1,0.2")
    assert again.returncode == 0, again.stderr
    assert "localrule rft" in again.stderr  # all that snakemake says
    assert made(place) == {"tasks": 1, "curate": 1, "model": 1, "sft": 1, "evaluate_sft": 1, "rft": 3,
                           "evaluate_rft": 2, "report": 2}
    assert "all 11 stages" in typed(
        place, "-m", "ouroboros", "run", "-m", "name=s", "algorithm.optimizer.lr=0.1,0.2").stdout


@pytest.mark.wide
def test_a_dry_run_of_a_sweep_leaves_nothing(place):
    done = typed(place, "-m", "ouroboros", "run", "-m", "algorithm.optimizer.lr=0.1,0.2", "--", "-n")
    assert done.returncode == 0
    assert "a dry-run" in done.stdout + done.stderr
    assert not (place / "made.txt").exists()
    assert not (place / "runs").exists()


@pytest.mark.wide
def test_a_sweeper_of_hydra_gets_its_scores_point_after_point(place):
    """The script of docs/sweeps.md with Hydra's own sweeper, which like Optuna's calls the application per point."""
    done = typed(place, str(HOME / "docs/examples/search.py"), "-m", "hydra.sweep.dir=hydra", "+name=q",
                 "+algorithm.optimizer.lr=0.1,0.3")
    assert done.returncode == 0, done.stderr
    assert made(place) == {"tasks": 1, "curate": 1, "model": 1, "sft": 1, "evaluate_sft": 1, "rft": 2,
                           "evaluate_rft": 2, "report": 2}
    assert [entry.view.run for entry in sweep_view.find(place, "q").entries] == [
        "ouroboros/q-lr=0.1", "ouroboros/q-lr=0.3"]
