"""The project of docs/add-an-algorithm.md, run whole from a directory outside the repository; then replayed."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.operators.test_add_an_algorithm import blocks
from tests.toy.conftest import REPOSITORY, SMALL

pytestmark = pytest.mark.slow
SETTINGS = ("explorer=transformers", "monitor=none", "trainer.max_checkpoints_to_keep=9")


def ouro(directory: Path, *words: str) -> subprocess.CompletedProcess:
    """`ouro` as its script starts it: our packages are installed, and the current directory is not on the path."""
    code = "import sys; sys.path.pop(0); from pipeline.cli import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run([sys.executable, "-c", code, *words], cwd=directory, env=environment, capture_output=True,
                          text=True, check=False)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A directory in which the page's algorithm has been trained."""
    directory = tmp_path_factory.mktemp("my-project")
    for path, text in blocks().items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
    done = ouro(directory, "run", "algorithm=mine", "name=median", *(word for word in SMALL if word != "name=toy"),
                *SETTINGS)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return directory


def sql(project, question):
    return json.loads(ouro(project, "sql", question, "median", "--format", "json").stdout)


def test_the_rows_have_the_advantage_of_the_page(project):
    rows = sql(project, "select group_id, reward, advantage from experience join trained using (experience_id)")
    groups: dict[str, list] = {}
    for row in rows:
        groups.setdefault(row["group_id"], []).append(row["reward"])
    assert len(rows) == 6 * 8 * 4
    assert all(abs(row["advantage"] - (row["reward"] - statistics.median(groups[row["group_id"]]))) < 1e-9
               for row in rows)


def test_the_loss_of_the_page_was_learnt_from(project):
    steps = sql(project, "select grad_norm, clip_fraction from steps where stage like 'rft%'")
    assert max(step["grad_norm"] for step in steps) > 0
    assert all(step["clip_fraction"] is not None for step in steps)


def test_a_step_is_replayed_under_other_algorithms(project):
    words = ("median", "--step", "3", "algorithm=grpo,mine", "algorithm.policy_loss_fn_args.cap=1.5")
    refused = ouro(project, "replay", *words)
    assert refused.returncode == 2  # grpo has no cap
    assert "algorithm=grpo: algorithm.policy_loss_fn_args: 'ppo' has no argument 'cap'" in (
        refused.stderr)
    done = ouro(project, "replay", "median", "--step", "3", "algorithm=grpo,gspo", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert "faithful" in done.stderr
    found = {row["algorithm"]: row for row in json.loads(done.stdout)}
    assert list(found) == ["as it was", "algorithm=grpo", "algorithm=gspo"]
    assert found["as it was"]["cosine"] == pytest.approx(1.0)
    assert ouro(project, "replay", "median", "--step", "2").returncode == 2  # only every second step has a checkpoint
