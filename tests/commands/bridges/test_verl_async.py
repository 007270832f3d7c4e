"""veRL's trainers that generate and train at once: GPUs of their own, and how far generation runs ahead."""

import pytest

from tests.bridges import from_verl, launch, written

MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"
TP = "actor_rollout_ref.rollout.tensor_model_parallel_size"
PLACES = ("cluster.node_num", "cluster.gpu_per_node", "trainer.ranks", "explorer.rollout_model.engine_num")
STREAM = ["data.train_batch_size=0", f"{MINI}=32", "async_training.trigger_parameter_sync_step=4",
          "async_training.require_batches=2", "async_training.staleness_threshold=0.5",
          "rollout.total_rollout_steps=3200", "trainer.n_gpus_per_node=4", "rollout.n_gpus_per_node=4",
          "trainer.nnodes=1", "rollout.nnodes=1", f"{TP}=2", "actor_rollout_ref.rollout.n=8"]


def made_of(*overrides: str):
    return from_verl(launch("algorithm.adv_estimator=grpo", *overrides))


def test_one_step_off_policy():
    """256 tasks of a step / 64 of an optimizer step: 4 explorer steps ahead. 6 + 2 GPUs, engines of 1."""
    made = made_of("data.train_batch_size=256", f"{MINI}=64", "trainer.n_gpus_per_node=6", "rollout.n_gpus_per_node=2",
                   f"{TP}=1")
    assert {key: written(made)[key] for key in (
        "mode", "cluster.gpu_per_node", "trainer.ranks", "explorer.rollout_model.engine_num",
        "synchronizer.sync_interval", "synchronizer.sync_offset")} == {
        "mode": "both", "cluster.gpu_per_node": 8, "trainer.ranks": 6, "explorer.rollout_model.engine_num": 2,
        "synchronizer.sync_interval": 4, "synchronizer.sync_offset": 4}
    assert made.left_out == []


def test_the_fully_asynchronous_trainer():
    """4 updates x 2 batches of 32 between hand-overs: 8 optimizer steps, half of them ahead; 3200 tasks / 32 = 100."""
    made = made_of(*STREAM)
    assert {key: written(made)[key] for key in (
        "mode", "buffer.batch_size", "buffer.train_batch_size", "synchronizer.sync_interval",
        "synchronizer.sync_offset", "buffer.total_steps", "trainer.ranks", "explorer.rollout_model.engine_num")} == {
        "mode": "both", "buffer.batch_size": 32, "buffer.train_batch_size": 256, "synchronizer.sync_interval": 8,
        "synchronizer.sync_offset": 4, "buffer.total_steps": 100, "trainer.ranks": 4,
        "explorer.rollout_model.engine_num": 2}
    assert [given.key for given, _ in made.left_out] == []
    assert "buffer.total_epochs" not in written(made)


@pytest.mark.parametrize(("share", "ahead"), [("0.29", 29), ("0.299", 29), ("0", 0), ("1", 100)])
def test_the_share_that_may_be_stale_is_taken_as_it_is_written(share, ahead):
    """Of 100 optimizer steps between hand-overs, rounded down; in floats 0.29 x 100 is 28.999999999999996."""
    made = made_of("data.train_batch_size=0", f"{MINI}=32", "async_training.trigger_parameter_sync_step=100",
                   f"async_training.staleness_threshold={share}")
    assert written(made)["synchronizer.sync_offset"] == ahead


def test_evaluations_are_counted_in_hand_overs():
    made = made_of(*STREAM, "rollout.test_freq=5", "data.val_files=/d/test.parquet")
    assert written(made)["explorer.eval_interval"] == 40  # 5 x 8


@pytest.mark.parametrize(("train", "generate", "wanted"), [(2, 2, (4, 8, 16, 8)), (3, 1, (4, 8, 24, 4))])
def test_the_machines_of_both_are_one_set(train, generate, wanted):
    """2 machines of 8 that train and 2 that generate are 4, each with 4 ranks and 2 engines of 2 GPUs."""
    found = written(made_of("trainer.n_gpus_per_node=8", f"trainer.nnodes={train}", "rollout.n_gpus_per_node=8",
                            f"rollout.nnodes={generate}", f"{TP}=2"))
    assert tuple(found[key] for key in PLACES) == wanted


def test_machines_that_do_not_come_out_become_one_with_the_same_shares():
    """1 machine that trains and 2 that generate: 8 ranks on 3 machines do not come out. 8 of 24 GPUs train."""
    made = made_of("trainer.n_gpus_per_node=8", "trainer.nnodes=1", "rollout.n_gpus_per_node=8", "rollout.nnodes=2",
                   f"{TP}=2")
    assert {key: written(made)[key] for key in PLACES if key in written(made)} == {
        "cluster.gpu_per_node": 8, "trainer.ranks": 4, "explorer.rollout_model.engine_num": 2}
    assert {given.key for given, _ in made.left_out} == {"trainer.nnodes", "rollout.nnodes"}


@pytest.mark.parametrize(("share", "is_on"), [("0.5", True), ("0", None)])
def test_answers_go_on_under_newer_weights_where_generation_is_ahead(share, is_on):
    made = made_of(*STREAM, f"async_training.staleness_threshold={share}", "async_training.partial_rollout=True")
    assert written(made).get("explorer.partial_rollout") == is_on
    assert [given.key for given, _ in made.left_out] == ([] if is_on else ["async_training.partial_rollout"])


@pytest.mark.parametrize("override", [
    "async_training.trigger_parameter_sync_step=$(cat n)", "async_training.require_batches=none",
    "async_training.staleness_threshold=$(cat n)", "rollout.n_gpus_per_node=$(cat n)", "trainer.n_gpus_per_node=-1",
    "rollout.total_rollout_steps=$(cat n)", f"{TP}=$(cat n)"])
def test_of_an_unknown_number_no_other_is_made(override):
    key = override.partition("=")[0]
    made = made_of(*(one for one in STREAM if not one.startswith(f"{key}=")), override)
    follow = {"async_training.trigger_parameter_sync_step": ["synchronizer.sync_interval", "synchronizer.sync_offset"],
              "async_training.require_batches": ["synchronizer.sync_interval"],
              "async_training.staleness_threshold": ["synchronizer.sync_offset"],
              "rollout.total_rollout_steps": ["buffer.total_steps"]}
    for to in follow.get(key, ["trainer.ranks", "explorer.rollout_model.engine_num", "cluster.gpu_per_node"]):
        assert to not in written(made)
    told = [u.given.key for u in made.unknown] + [g.key for g, _ in made.left_out + made.idle] + made.chosen
    assert any(key in one for one in told)
