"""Steps, tokens and bytes by hand."""

import pytest

from ouroboros.pipeline.check.workload import Disk, Workload, counted, described, disk, row_bytes, workload
from ouroboros.pipeline.compose.recipe import Recipe, effective
from ouroboros.pipeline.job.schedule import rft_schedule
from tests.configs import changed
from tests.golden.messages import wording
from tests.sizes import TIED, TOY

P = TIED.parameters


def stage(name: str, **values):
    config = changed({key.replace("__", "."): value for key, value in values.items()})
    return effective(config, next(s for s in config.stages if s["stage_name"] == name))


def test_the_default_recipe():
    """64 tasks x 8; 450 steps of as many rows; 24 + 12 tokens; weights of 2 + 2 explorer steps and a sync every second:
    the one in use and (1 + 2) / 2 = 1 more."""
    assert workload(stage("rft")) == Workload(512, 512, 36, 450, 450, 2)
    assert workload(stage("rft")).experiences == 230_400
    assert workload(stage("sft")) == Workload(0, 256, 36, 0, 400, 0)


def test_pairs_are_two_rows_each():
    found = stage("rft", algorithm__algorithm_type="dpo", algorithm__advantage_fn=None)
    assert workload(found) == Workload(0, 128, 36, 0, 450, 0)
    wording(dict(described(found))["trainer"], "450", "128", "4,608")


def test_train_batches_of_another_size_change_the_steps_of_the_explorer_and_the_versions():
    """100 steps of 1024 rows are 102,400, which 64 x 8 = 512 rows a step make in 200. 256 rows a train step: two for an
    explorer step, 3 explorer steps ahead, each handed over: 6 versions, and that in use."""
    found = workload(stage("rft", buffer__train_batch_size=1024, buffer__total_steps=100))
    assert (found.trained, found.explorer_steps, found.experiences) == (1024, 200, 102_400)
    assert workload(stage("rft", buffer__train_batch_size=256, synchronizer__sync_interval=1)).versions == 7


def test_groups_that_are_not_waited_for_are_rows_besides():
    """A quarter of 64 tasks are 16; the other 48 x 8 are 384 rows, as many as a train batch. 16 x 8 = 128 more."""
    found = stage("rft", explorer__over_rollout__ratio=0.25)
    assert workload(found) == Workload(384, 384, 36, 450, 450, 2, 128)
    words = dict(described(found))
    wording(words["explorer"], "48 complete", "64 tasks", "8 rollouts", "= 384")
    assert "explorer.over_rollout" in words["repeated"]
    assert "repeated" not in dict(described(stage("rft")))


def test_an_epoch_asks_every_task_once_and_trains_on_those_that_were_taken(settings):
    """100 tasks, ten a step of which eight are taken, each four times: 10 explorer steps of 32 rows."""
    schedule = rft_schedule(settings("buffer.total_steps=null", "buffer.batch_size=10", "algorithm.repeat_times=4",
                                     "explorer.over_rollout.ratio=0.2"), 100)
    assert (schedule.explorer_steps, schedule.total_steps, schedule.rows_per_explorer_step) == (10, 10, 32)


def test_passes_over_tasks_are_counted_once_they_are_curated():
    found = workload(stage("rft", buffer__total_steps=None, buffer__total_epochs=2))
    assert (found.explorer_steps, found.trainer_steps, found.experiences) == (None, None, None)
    words = dict(described(stage("rft", buffer__total_steps=None, buffer__total_epochs=2)))
    wording(words["trainer"], "2 pass(es)")
    wording(words["explorer"], "64 tasks", "8 rollouts", "= 512")


def test_a_row_grows_by_its_tokens():
    """A prompt token: 3 bytes as id, 2 as text. A response token: 3, 2, two log-probs, an advantage and an entropy of
    4, a mask of 0.1."""
    fixed = row_bytes(0, 0)
    assert row_bytes(10, 0) - fixed == pytest.approx(50)
    assert row_bytes(0, 10) - fixed == pytest.approx(211)
    assert 0 < fixed < 200


def test_disk_is_experience_checkpoints_and_weights():
    """float32, tied: a model is 4 x (P + 40) bytes; a checkpoint 4 P + 12 P. 2 are kept and one is written."""
    model = 4 * (P + 40)
    one = 16 * P
    found = disk(stage("rft"), TIED, 4)
    assert found == Disk(pytest.approx(230_400 * row_bytes(24, 12)), one, 3 * one, 2 * model)
    assert found.total == found.tables + found.checkpoints + found.versions
    assert disk(stage("sft"), TIED, 4) == Disk(0, one, 3 * one, 0)
    assert disk(stage("rft", buffer__total_steps=None), TIED, 4).tables is None
    assert disk(stage("rft", trainer__reference_update__interval=10), TIED, 4).checkpoint == one + 4 * P


@pytest.mark.parametrize(("steps", "more", "checkpoints"), [
    *((steps, {}, made) for steps, made in ((25, 1), (26, 2), (50, 2), (51, 3), (1000, 3))),  # 2, and one is written
    (1000, {"trainer__keep_every": 100}, 3 + 10),  # each hundredth stays
    (1000, {"trainer__keep_every": 100, "trainer__max_checkpoints_to_keep": None}, 40 + 10),
    (60, {"trainer__max_checkpoints_to_keep": None}, 3)])
def test_checkpoints_are_as_many_as_are_made_and_kept(steps, more, checkpoints):
    """One every 25 steps, and the last."""
    found = disk(stage("rft", buffer__total_steps=steps, **more), TIED, 4)
    assert found.checkpoints == checkpoints * 16 * P


def test_where_all_checkpoints_are_kept_their_number_may_not_be_known():
    found = disk(stage("rft", buffer__total_steps=None, trainer__max_checkpoints_to_keep=None), TIED, 4)
    assert (found.checkpoint, found.checkpoints) == (16 * P, None)
    assert found.total == found.checkpoint + found.versions  # at least


def test_a_critic_is_in_every_checkpoint_and_an_untied_head_is_a_parameter_like_others():
    """float32: 16 bytes for each of its parameters: no head (TIED's is its embedding), one of 4 weights and a bias."""
    plain, critic = (disk(stage("rft", algorithm__advantage_fn=name), TIED, 4) for name in ("grpo", "ppo"))
    assert critic.checkpoints - plain.checkpoints == 3 * 16 * (P + 5)
    assert critic.versions == plain.versions
    assert disk(stage("rft", synchronizer__publish="full"), TOY, 2).versions == 2 * 2 * (P + 40)


@pytest.mark.parametrize(("publish", "keep", "element", "count"), [
    ("auto", "last", 4, 2), ("auto", "last", 2, 4),  # the last full one, and as much again of deltas
    ("full", "all", 2, 2 + 51), ("full", "anchors", 2, 2 + 51), ("auto", "all", 4, 2 + 51),
    ("auto", "anchors", 2, 4 + 3), ("delta", "all", 2, 4 + 2 * 3)])
def test_kept_versions_take_disk(publish, keep, element, count):
    """A version at every second of 100 steps, and the first: 51, of which every 20th is written whole."""
    given = stage("rft", synchronizer__publish=publish, synchronizer__keep=keep, buffer__total_steps=100)
    assert disk(given, TIED, element).versions == count * element * (P + 40)


def test_passes_over_what_a_stage_explores_are_counted():
    """20 steps of 16 tasks x 8 rollouts are 2,560 rows: two passes in batches of 64 are 80 steps."""
    look = {"stage_name": "look", "mode": "explore", "buffer": {"batch_size": 16, "total_steps": 20},
            "algorithm": {"repeat_times": 8}}
    train = {"stage_name": "train", "mode": "train",
             "buffer": {"train_batch_size": 64, "total_steps": None, "total_epochs": 2}}
    assert counted(Recipe(changed({"stages": [look, train]})))["train"].buffer.total_steps == 80
    look["buffer"] = {"batch_size": 16, "total_steps": None}
    assert counted(Recipe(changed({"stages": [look, train]})))["train"].buffer.total_steps is None
