"""With which settings the processes of a stage start, by the checkpoints that it has."""

import pytest

from ouroboros.pipeline.job import context as job
from ouroboros.pipeline.job import segments
from ouroboros.pipeline.store import checkpoints, files
from tests.configs import TINY

CHANGES = ("mode=train", "algorithm.algorithm_type=sft",
           "changes={4: {algorithm.optimizer.lr: 0.5}, 6: {trainer.grad_clip: 2.0}}")


@pytest.fixture
def stage(context_of, tmp_path):
    """A stage of 9 steps at work, whose settings change after steps 4 and 6."""
    context = context_of(tmp_path / "sft-1", *TINY, *CHANGES)
    files.write_json(context.directory / job.TOTAL, {"total_steps": 9})
    return context


def reach(context: job.Context, step: int) -> None:
    files.write_json(checkpoints.checkpoint_directory(context.directory, step) / files.MANIFEST, {})


@pytest.mark.parametrize(("reached", "until", "lr", "clip"), [
    (None, 4, 5e-4, 1.0), (2, 4, 5e-4, 1.0), (4, 6, 0.5, 1.0), (5, 6, 0.5, 1.0), (7, None, 0.5, 2.0)])
def test_settings_follow_from_the_newest_checkpoint(stage, reached, until, lr, clip):
    if reached:
        reach(stage, reached)
    assert segments.choose(stage.directory, stage.config) == until
    config, then = segments.chosen(stage.directory, stage.config)
    assert (then, config.algorithm.optimizer.lr, config.trainer.grad_clip) == (until, lr, clip)


def test_a_stage_starts_again_only_where_it_has_reached_the_change(stage):
    """Without the checkpoint of step 4 the next launch would end after step 4 too, for ever."""
    spec = {"kind": "train", "root": str(stage.directory.parent)}

    def work(context):
        context.until = 4

    with pytest.raises(AssertionError):
        job._make(work, stage, spec)
    reach(stage, 4)
    assert job._make(work, stage, spec)
