"""A stage whose ranks share sequences; tests/learner/test_ranks.py compares ranks, ZeRO stages and micro-batches."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.toy.conftest import REPOSITORY, copy_upstream, plan_in, stage_of
from tests.toy.kill import killed

pytestmark = pytest.mark.wide

FOUR_STEPS = ("stages.sft.buffer.total_steps=4", "stages.sft.buffer.batch_size=32")


def sft_in(root: Path, upstream, overrides: tuple[str, ...]):
    plan = plan_in(root, *FOUR_STEPS, *overrides)
    plan.freeze()
    copy_upstream(upstream, plan, ("tasks", "curate", "model"))
    return stage_of(plan, "sft")


def weights(root: Path, upstream, overrides: tuple[str, ...]) -> dict:
    from safetensors.numpy import load_file

    stage = sft_in(root, upstream, overrides)
    done = subprocess.run([sys.executable, "-m", "ouroboros.stages.train", stage.directory], cwd=REPOSITORY,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:] + (Path(stage.directory) / "trainer.log").read_text()[-3000:]
    return load_file(Path(stage.directory) / "model" / "model.safetensors")


def test_split_sequences_resume_after_a_kill_and_may_begin_whole(finished, tmp_path):
    import numpy as np

    whole = ("trainer.ranks=2", "trainer.save_interval=1")
    split = (*whole, "trainer.ulysses_sequence_parallel_size=2")
    start, expected = weights_of_init(finished.plan), weights(tmp_path / "undisturbed", finished.plan, split)
    moved = max(np.abs(expected[name] - start[name]).max() for name in start)
    for begun, allowed in ((split, 0.0), (whole, 0.01 * moved)):
        root = tmp_path / str(len(begun))
        killed(sft_in(root, finished.plan, begun), "steps", 3)
        found = weights(root, finished.plan, split)
        assert max(np.abs(found[name] - expected[name]).max() for name in expected) <= allowed < moved


def weights_of_init(plan) -> dict:
    from safetensors.numpy import load_file

    return load_file(Path(stage_of(plan, "model").directory) / "model.safetensors")
