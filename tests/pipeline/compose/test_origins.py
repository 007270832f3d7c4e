"""Where a value comes from: every layer of a composition, and a stage's own."""

import pytest

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.compose.origins import DEFAULT, origin, stage_origin
from ouroboros.pipeline.compose.recipe import entries


def found(key: str, *overrides: str) -> str:
    compose(list(overrides))
    return origin(list(overrides), key)


@pytest.mark.parametrize(("key", "overrides", "source"), [
    ("trainer.zero_stage", [], DEFAULT),
    ("trainer.save_interval", [], "conf/recipe/countdown.yaml"),
    ("buffer.explorer_input.eval_tasksets.0.limit", [], "conf/recipe/countdown.yaml"),  # the list came as a whole
    ("cluster.gpu_per_node", ["cluster=eight_gpus"], "conf/cluster/eight_gpus.yaml"),
    ("cluster.node_num", ["cluster=eight_gpus"], DEFAULT),  # the file says nothing of it
    ("seed", ["seed=5"], "the command line: seed=5"),
    ("algorithm.optimizer.lr", ["algorithm.optimizer={lr: 1}"], "the command line: algorithm.optimizer={lr: 1}"),
    ("algorithm.algorithm_type", ["algorithm=sft"], "the command line: algorithm.algorithm_type=sft"),
    ("cluster.gpu_per_node", ["cluster=eight_gpus", "cluster.gpu_per_node=2"],
     "the command line: cluster.gpu_per_node=2"),
    ("data_processor.task_pipeline.generator_args.dirt", [], "conf/recipe/countdown.yaml")])
def test_the_last_layer_that_has_a_key_is_its_origin(key, overrides, source):
    assert found(key, *overrides) == source


def test_recipes_and_groups_of_the_users_own_are_told_by_their_paths(tmp_path, monkeypatch):
    (tmp_path / "conf" / "cluster").mkdir(parents=True)
    (tmp_path / "conf" / "cluster" / "ours.yaml").write_text("gpu_per_node: 3\n")
    (tmp_path / "mine.yaml").write_text("seed: 9\nmodel: {init: {enable: true}}\n")
    monkeypatch.chdir(tmp_path)
    assert found("cluster.gpu_per_node", "cluster=ours").endswith("conf/cluster/ours.yaml")
    assert found("seed", "recipe=mine.yaml") == "mine.yaml"
    assert found("trainer.save_interval", "recipe=mine.yaml") == DEFAULT


ARGS = "algorithm.policy_loss_fn_args"
CLIP = f"{ARGS}.clip_range_low=0.3"
TYPE = "stages.rft.algorithm.algorithm_type"


@pytest.mark.parametrize(("stage", "key", "overrides", "source"), [
    ("rft", ARGS, [CLIP, f"{TYPE}=gspo"],
     f"{DEFAULT}: what the run says is for ppo, and policy_loss_fn is gspo here"),
    ("rft", ARGS, [f"{TYPE}=gspo"], DEFAULT),
    ("rft", ARGS, [CLIP], f"the command line: {CLIP}"),
    ("rft", ARGS, [CLIP, f"{TYPE}=dapo"],
     f"the command line: {CLIP}; over the algorithm's own (conf/algorithm/dapo.yaml)"),
    ("rft", f"{ARGS}.clip_range_low", [CLIP, f"{TYPE}=dapo"], f"the command line: {CLIP}"),
    ("rft", f"{ARGS}.clip_range_high", [CLIP, f"{TYPE}=dapo"], "the algorithm's own (conf/algorithm/dapo.yaml)"),
    ("rft", "algorithm.kl_loss_fn", ["algorithm.kl_loss_fn=k2"], "the command line: algorithm.kl_loss_fn=k2"),
    ("sft", "buffer.batch_size", [], "the stage's own entry (conf/recipe/countdown.yaml)"),
    ("sft", "buffer.batch_size", ["stages.sft.buffer.batch_size=8"],
     "the command line: stages.sft.buffer.batch_size=8"),
    ("rft", "buffer.batch_size", ["stages.sft.buffer.batch_size=8"], "conf/recipe/countdown.yaml"),
    ("rft", "algorithm.advantage_fn", [], "the algorithm's own (conf/algorithm/grpo.yaml)")])
def test_a_stage_has_values_of_its_own(stage, key, overrides, source):
    config = compose(overrides)
    entry = next(e for e in entries(config) if e["stage_name"] == stage)
    assert stage_origin(config, entry, key, overrides) == source
