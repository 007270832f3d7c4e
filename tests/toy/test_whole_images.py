"""The recipe `digits`, two steps of it: from images to weights, also after a kill."""

import subprocess
import sys
from pathlib import Path

import pytest

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.plan.plan import make_plan
from tests.toy.conftest import REPOSITORY, copy_upstream, stage_of, table
from tests.toy.kill import killed, made, start

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
