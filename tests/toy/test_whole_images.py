"""The recipe `digits`, two steps of it: from images to weights, also after a kill."""

import subprocess
import sys
from pathlib import Path

import pytest

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.store import tables
from ouroboros.pipeline.store.recovery import EVALUATED
from tests.toy.conftest import REPOSITORY, copy_upstream, stage_of, table
from tests.toy.kill import killed, killed_when, made, start

ARGUMENTS = "data_processor.task_pipeline.generator_args"
SMALL = ("recipe=digits", "name=small", f"{ARGUMENTS}.tasks=24", f"{ARGUMENTS}.tests=8", "buffer.batch_size=4",
         "algorithm.repeat_times=4", "buffer.total_steps=2", "trainer.save_interval=1", "monitor=none",
         "synchronizer.sync_interval=1", "synchronizer.sync_offset=0",
         "stages.sft.buffer.batch_size=32", "stages.sft.buffer.total_steps=2")


def plan_in(root: Path):
    return make_plan(compose([f"checkpoint_root_dir={root}", *SMALL]))


@pytest.mark.slow
def test_images_go_from_tasks_to_weights_and_a_kill_changes_nothing(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    words = "run", f"checkpoint_root_dir={whole}", *SMALL, "--", "rft"
    done = subprocess.run([sys.executable, "-m", "ouroboros", *words], cwd=REPOSITORY, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    plan, other = plan_in(whole), plan_in(broken)
    curated, rft = (Path(stage_of(plan, name).directory) for name in ("curate", "rft"))
    tasks = {row["task_id"]: row for row in table(curated, "tasks")}
    seen = {row["hash"] for row in table(curated, "pictures")}
    rows = table(rft, "experience")
    assert len(rows) == 2 * 4 * 4
    for row in rows:
        assert row["pictures"] == tasks[row["task_id"]]["pictures"]
        assert len(row["pictures"]) == 2
        assert seen.issuperset(row["pictures"])
    assert all(row["kl"] < 1e-8 for row in table(rft, "steps"))  # of the engine's log-probs from the trainer's

    other.freeze()
    copy_upstream(plan, other, ("model", "tasks", "curate", "sft"))
    stage = stage_of(other, "rft")
    killed(stage, "rollouts", 2)
    assert start(stage).wait() == 0
    assert made(Path(stage.directory)) == made(rft)


@pytest.mark.slow
def test_images_of_agents_are_stored_trained_on_and_the_same_after_a_kill(tmp_path):
    """The agent's tool answers its first reply with an image that it draws, twice around the first of the task's two.
    Killed while attempts of step 2 show images: they are replayed, and show them again."""
    more = ("buffer.explorer_input.default_workflow_type=tests.clients:draws", "model.max_prompt_tokens=64",
            "trainer.share_prompts=true", "explorer.runner_concurrency=1", "explorer.eval_interval=1")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    done = subprocess.run([sys.executable, "-m", "ouroboros", "run", f"checkpoint_root_dir={whole}", *SMALL, *more,
                           "--", "rft"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    plan, other = (make_plan(compose([f"checkpoint_root_dir={root}", *SMALL, *more])) for root in (whole, broken))
    rft = Path(stage_of(plan, "rft").directory)
    tasks = {row["task_id"]: row["pictures"] for row in table(Path(stage_of(plan, "curate").directory), "tasks")}
    drawn = {row["hash"] for row in table(rft, "shown")}
    rows = table(rft, "experience")
    whole_rows = [row for row in rows if len(row["pictures"]) > 2]  # others end with a sampled token of an image
    assert len({row["slot"] for row in rows if row["step"] == 1}) == 16
    for row in whole_rows:
        first, second, new, again, last = row["pictures"]
        assert [first, second, again, new] == [*tasks[row["task_id"]], first, last]
        assert new in drawn
        assert row["prompt"].startswith("<image>+<image>:")
    assert drawn == {row["pictures"][2] for row in whole_rows}
    assert all(row["kl"] < 1e-8 and row["mismatch_max"] < 1e-4 for row in table(rft, "steps"))
    held = table(rft, "samples")
    assert all([*row["pictures"][:2]] == tasks[row["task_id"]] for row in held)
    assert {row["hash"] for row in table(rft, "sample_shown")} == {one for row in held for one in row["pictures"][2:3]}

    other.freeze()
    copy_upstream(plan, other, ("model", "tasks", "curate", "sft"))
    stage = stage_of(other, "rft")
    killed_when(stage, lambda: len(list(Path(stage.directory).glob(".shown-2/*"))) > 2)
    assert not tables.step_file(Path(stage.directory), "rollouts", 2).exists()
    assert start(stage).wait() == 0
    assert made(Path(stage.directory), *EVALUATED) == made(rft, *EVALUATED)
    assert not list(Path(stage.directory).glob(".shown*"))
