"""Launch scripts and configurations of veRL: the forms that people write."""

import pytest

from ouroboros.pipeline.store.errors import ConfigError
from tests.bridges import from_verl, launch, written
from tests.bridges import values_of_verl as values
from tests.golden.messages import refuses, wording

INPUT = "buffer.explorer_input"


def test_yaml_with_nested_keys_and_references():
    text = """
data: {train_batch_size: 128, train_files: /d/x/train.parquet, max_prompt_length: 100}
actor_rollout_ref:
  actor: {ppo_mini_batch_size: "${data.train_batch_size}", optim: {lr: 1e-6}}
  rollout: {prompt_length: "${oc.select:data.max_prompt_length,512}", n: "${data.nowhere}"}
algorithm.adv_estimator: grpo
"""
    found, made = values(text, "c.yaml"), from_verl(text, "c.yaml")
    assert (found["buffer.batch_size"], found["synchronizer.sync_interval"]) == (128, 1)
    assert found["algorithm.algorithm_type"] == "grpo"
    wording([[(u.given.key, u.why) for u in made.unknown]], "actor_rollout_ref.rollout.n", "data.nowhere")


def test_dotted_overrides_alone():
    found = values("data.train_batch_size=64\n+algorithm.adv_estimator=rloo ++trainer.total_epochs=3\n", "-")
    assert (found["algorithm.algorithm_type"], found["buffer.total_epochs"]) == ("rloo", 3)


@pytest.mark.parametrize("start", [
    "python3 -m verl.trainer.main_ppo", "python verl/trainer/main_ppo.py",
    "torchrun --nproc_per_node 8 -m verl.trainer.main_ppo",
    "ray job submit --address=http://h:8265 --no-wait -- python3 -m verl.trainer.main_ppo",
    "HYDRA_FULL_ERROR=1 python3 -u -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer.yaml",
    "PYTHONUNBUFFERED=1 nohup python -m recipe.dapo.main_dapo"])
def test_ways_to_start(start):
    before = "set -x\nX=1 python prepare.py --n 3\n"
    found = values(f"{before}{start} \\\n  data.train_batch_size=64 trainer.nnodes=1 &> log &\n")
    assert found["cluster.node_num"] == 1


def test_the_last_of_two_overrides_counts_and_another_command_is_named():
    script = launch("data.train_batch_size=1", "data.train_batch_size=512") + "\n" + launch("data.train_batch_size=7")
    made = from_verl(script)
    assert made.entries[("synchronizer", "sync_interval")].value == 2
    assert [line for line, text in made.skipped if "another command" in text] == [4]
    wording([made.assumed], "(3,", "data.train_batch_size", "line 2")


def test_a_command_within_a_loop_is_read_once_and_its_variables_are_not_known():
    made = from_verl("for lr in 1e-6 2e-6; do\n" + launch("actor_rollout_ref.actor.optim.lr=$lr", "trainer.nnodes=1")
                      + "\ndone")
    assert made.entries[("cluster", "node_num")].value == 1
    assert [(u.given.key, u.given.line, u.to) for u in made.unknown] == [
        ("actor_rollout_ref.actor.optim.lr", 3, ["algorithm.optimizer.lr"])]
    wording([made.assumed], "(2,", "veRL", "2 times")
    assert made.skipped == []


def test_a_forgotten_backslash_is_named_with_its_line():
    made = from_verl("python3 -m verl.trainer.main_ppo \\\n  data.train_batch_size=64\n  trainer.nnodes=1\n")
    assert ("cluster", "node_num") not in made.entries
    assert any(line == 3 and "a backslash missing" in text for line, text in made.skipped)
    assert made.lost == [3]


def test_a_word_that_is_no_override_is_named():
    made = from_verl(launch("trainer.nnodes=1", "data.train_files=[a, b]"))
    assert (3, "b]") in [(line, text.partition(":")[0]) for line, text in made.skipped]


def test_deletions_and_configuration_files_are_named():
    made = from_verl(launch("--config-path /c --config-name x", "~trainer.device", "~data.seed=3", "trainer.nnodes=1"))
    told = " ".join(text for _, text in made.skipped)
    assert "--config-name" in told
    assert "~trainer.device" in told
    assert [g.key for g, _ in made.left_out] == ["data.seed"]


def test_a_key_without_a_counterpart_is_listed_with_line_and_value():
    made = from_verl(launch("trainer.nnodes=1", "actor_rollout_ref.actor.brand_new=[1,{a:b}]", "+x.y.z=q"))
    assert [(g.key, g.value, g.line, why) for g, why in made.left_out] == [
        ("actor_rollout_ref.actor.brand_new", [1, {"a": "b"}], 3, "no counterpart known."),
        ("x.y.z", "q", 4, "no counterpart known.")]


@pytest.mark.parametrize(("text", "said"), [
    ("echo hello\n", "veRL"), ("", "settings"), ("- a\n- b\n", "settings"),
    ("a: [1\n", "line 2"), ("a: 1\na: 2\n", "there")])
def test_a_source_without_anything_of_verl_is_refused(text, said):
    with refuses(ConfigError, said):
        from_verl(text, "x.sh" if "echo" in text else "x.yaml")


@pytest.mark.parametrize(("theirs", "expected"), [
    ("actor_rollout_ref.model.lora_rank=8 actor_rollout_ref.model.target_modules=[q_proj,v_proj]",
     {"lora_rank": 8, "target_modules": ["q_proj", "v_proj"], "lora_alpha": 16}),  # 16: veRL's default
    ("actor_rollout_ref.model.lora_rank=64 actor_rollout_ref.model.lora_alpha=32 "
     "actor_rollout_ref.model.target_modules=all-linear actor_rollout_ref.model.lora_adapter_path=a/b",
     {"lora_rank": 64, "lora_alpha": 32, "target_modules": "all-linear", "path": "a/b"}),
    ("actor_rollout_ref.model.lora_rank=0 actor_rollout_ref.model.lora_alpha=32", {}),
    ("actor_rollout_ref.model.lora_rank=8 actor_rollout_ref.model.target_modules='.*_proj'",
     {"lora_rank": 8, "lora_alpha": 16}),  # a pattern is left out, and said so
])
def test_an_adapter_is_one_where_its_rank_is_more_than_zero(theirs, expected):
    made = from_verl(f"python3 -m verl.trainer.main_ppo data.train_batch_size=64 {theirs}", "a.sh")
    found = {path[-1]: entry.value for path, entry in made.entries.items() if path[:2] == ("model", "lora_configs")}
    assert found == expected
    assert made.keys == len(theirs.split()) + 1


@pytest.mark.parametrize(("value", "on"), [("1", True), ("yes", True), ("on", True), ('"True"', True), ("TRUE", True),
                                           ("0", False), ("no", False), ("off", False), ("null", False)])
def test_a_switch_is_on_whatever_the_word(value, on):
    actor = "actor_rollout_ref.actor"
    made = written(from_verl(launch(f"{actor}.use_kl_loss={value}", f"{actor}.kl_loss_coef=0.01",
                                    f"algorithm.use_kl_in_reward={value}")))
    assert made["algorithm.kl_loss_fn"] == ("low_var_kl" if on else "none")
    assert made.get("algorithm.kl_loss_fn_args.kl_coef") == (0.01 if on else None)
    assert made["algorithm.kl_penalty_fn"] == ("k1" if on else "none")


@pytest.mark.parametrize(("given", "kept"), [
    (["save_freq=5"], None), (["save_freq=5", "max_actor_ckpt_to_keep=3"], 3),
    *((["save_freq=5", f"max_actor_ckpt_to_keep={number}"], None) for number in ("null", "-1")),
    *((nothing, "no line") for nothing in ([], ["save_freq=-1"], ["save_freq=-1", "max_actor_ckpt_to_keep=null"]))])
def test_all_checkpoints_are_kept_where_there_are_any_unless_a_number_above_0_is_given(given, kept):
    """veRL's checkpoint manager deletes only when the number is above 0."""
    found = written(from_verl(launch("trainer.nnodes=1", *(f"trainer.{one}" for one in given))))
    assert found.get("trainer.max_checkpoints_to_keep", "no line") == kept


@pytest.mark.parametrize(("gpus", "split", "engines"), [("8", 2, 4), ("16", 2, 8), ("1", 1, 1)])
def test_engines_have_verls_gpus_where_the_script_is_silent(gpus, split, engines):
    """veRL's default of tensor_model_parallel_size is 2; its engines take all GPUs, in turns with the trainer."""
    found = written(from_verl(launch(f"trainer.n_gpus_per_node={gpus}")))
    model = "explorer.rollout_model"
    assert (found[f"{model}.tensor_parallel_size"], found[f"{model}.engine_num"]) == (split, engines)


def test_a_launch_without_keys_is_one_with_verls_defaults():
    found = written(from_verl("python3 -m verl.trainer.main_ppo"))
    assert (found["algorithm.algorithm_type"], found["synchronizer.sync_interval"]) == ("ppo", 4)  # 1024 / 256


@pytest.mark.parametrize("text", [
    "data.train_batch_size=64 algorithm.adv_estimator=grpo\nactor_rollout_ref.rollout.n=8 trainer.total_epochs=2\n",
    "# c\ndata.train_batch_size=64\n+actor_rollout_ref.rollout.n=8 algorithm.adv_estimator=grpo # d\n"
    "trainer.total_epochs=2",
    "data.train_batch_size=64\nactor_rollout_ref.rollout.n=8\nalgorithm.adv_estimator=grpo\n\n"
    "trainer.total_epochs=2"])
def test_without_a_command_that_starts_verl_every_line_is_overrides(text):
    made = from_verl(text, "a.txt")
    found = written(made)
    assert found["synchronizer.sync_interval"] == 1  # 64 / 256 is one optimizer step
    assert [found[key] for key in ("algorithm.repeat_times", "algorithm.algorithm_type", "buffer.total_epochs")] == [
        8, "grpo", 2]
    assert (made.skipped, made.lost) == ([], [])


def test_a_word_among_overrides_that_is_none_is_told_as_lost():
    made = from_verl("data.train_batch_size=64 trainer.nnodes=1\nalgorithm.adv_estimator: grpo\n"
                     "trainer.total_epochs= 2\ndata.seed = 3")
    assert [(line, text.rpartition(": ")[0]) for line, text in made.skipped] == [
        (2, "algorithm.adv_estimator:"), (2, "grpo"), (3, "2"), (4, "data.seed"), (4, "="), (4, "3")]
    assert made.lost == [2, 2, 3, 4, 4, 4]
