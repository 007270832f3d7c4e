"""A run whose explorer steps do not wait for their slowest tasks, with an agent that sleeps at a third of them."""

import subprocess
import sys
from pathlib import Path

import pytest

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.store import files
from tests.toy.conftest import REPOSITORY, stage_of, table

TASKS, REPEATS, STEPS = 4, 2, 3
SLEEPY = ("stages=[{stage_name: rft}]", "name=sleepy", "data_processor.task_pipeline.generator_args.tasks=40",
          "data_processor.task_pipeline.generator_args.demonstrations=0", f"buffer.batch_size={TASKS}",
          f"algorithm.repeat_times={REPEATS}", f"buffer.total_steps={STEPS}", "buffer.explorer_input.eval_tasksets=[]",
          "buffer.explorer_input.default_workflow_type=tests.agents:slow_at_a_third",
          "explorer.rollout_model.engine_type=transformers", "explorer.over_rollout.ratio=0.5",
          "synchronizer.sync_interval=1", "monitor=none")


def ouro(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "ouroboros", *words], cwd=REPOSITORY, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def stage_to_kill(root: Path, words: tuple[str, ...]):
    """The rft stage of a configuration, whose inputs are complete."""
    given = (f"checkpoint_root_dir={root}", *words)
    ouro("run", *given, "--", "model", "curate")
    plan = make_plan(compose(list(given)))
    plan.freeze()
    return stage_of(plan, "rft")


def assert_whole(directory: Path) -> None:
    """Two of four tasks in each step, twice: batches of four rows, and four rows besides that nobody trains on."""
    rows, rollouts, trained = (table(directory, name) for name in ("experience", "rollouts", "trained"))
    assert [(r["attempts"], r["rows"], r["late_groups"]) for r in rollouts] == [(4, 4, 2)] * STEPS
    assert [r["slot"] for r in rows] == list(range(TASKS * REPEATS)) * STEPS
    assert all(r["status"] == ("ok" if r["slot"] < 4 else "late") for r in rows)
    assert {r["experience_id"] for r in trained} == {r["experience_id"] for r in rows if r["status"] == "ok"}
    assert [r["trained_rows"] for r in table(directory, "steps")] == [4] * STEPS


@pytest.mark.slow
def test_batches_are_full_whatever_was_late_and_the_run_says_that_it_depends_on_time(tmp_path):
    given = (f"checkpoint_root_dir={tmp_path}", *SLEEPY)
    printed = ouro("run", *given)
    plan = make_plan(compose(list(given)))
    directory = Path(stage_of(plan, "rft").directory)
    assert_whole(directory)
    assert "attempts failed" not in printed
    keys = ["explorer.over_rollout", "buffer.explorer_input.default_workflow_type"]
    assert files.read_json(directory / files.MANIFEST)["depends_on_time"] == keys
    said = f"{' and '.join(keys)} depend on time"
    assert said in ouro("status", "sleepy", "--root", str(tmp_path))
    report = Path(stage_of(plan, "report").directory) / "report.html"
    assert said in report.read_text()
    ouro("verify", "sleepy", "--root", str(tmp_path))
