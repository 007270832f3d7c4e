"""Launch scripts and configurations of veRL: what is decided by several keys at once, and the forms people write."""

import pytest

from pipeline.errors import ConfigError
from tests.bridges import from_verl, launch, written

INPUT = "buffer.explorer_input"


def values(text: str, name: str = "run.sh") -> dict:
    return written(from_verl(text, name))


# -------------------------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize(("estimator", "algorithm", "advantage"), [
    ("gae", "ppo", "ppo"), ("grpo", "grpo", "grpo"), ("reinforce_plus_plus", "reinforceplusplus", "reinforceplusplus"),
    ("rloo", "rloo", "rloo"), ("remax", "remax", "remax"), ("opo", "opo", None)])
def test_the_estimator_names_the_algorithm(estimator, algorithm, advantage):
    found = values(launch(f"algorithm.adv_estimator={estimator}"))
    assert (found["algorithm.algorithm_type"], found.get("algorithm.advantage_fn")) == (algorithm, advantage)


def test_an_estimator_that_is_not_known_is_said_and_not_taken_for_another():
    assert "no algorithm here is known" in " ".join(from_verl(launch("algorithm.adv_estimator=opo")).chosen)


@pytest.mark.parametrize(("train", "mini", "n", "batch", "interval", "experiences"), [
    (1024, 256, 8, 256, 4, 2048), (64, 64, 4, 64, 1, 256), (100, 32, 2, 32, 3, 64), (16, 64, 2, 16, 1, 32)])
def test_three_batch_sizes_become_three(train, mini, n, batch, interval, experiences):
    """batch_size = mini, sync_interval = train // mini, train_batch_size = mini x n; mini at most train."""
    made = from_verl(launch(f"data.train_batch_size={train}", f"actor_rollout_ref.actor.ppo_mini_batch_size={mini}",
                             f"actor_rollout_ref.rollout.n={n}"))
    found = {".".join(map(str, path)): entry.value for path, entry in made.entries.items()}
    assert (found["buffer.batch_size"], found["synchronizer.sync_interval"]) == (batch, interval)
    assert found["buffer.train_batch_size"] == experiences
    told = " ".join(made.chosen)
    assert ("no multiple" in told) == (train % mini != 0 and mini < train)
    assert ("which veRL refuses" in told) == (mini > train)


def test_what_counts_steps_of_verl_counts_optimizer_steps_here():
    found = values(launch("data.train_batch_size=512", "actor_rollout_ref.actor.ppo_mini_batch_size=32",
                          "trainer.total_training_steps=100", "actor_rollout_ref.actor.optim.lr_warmup_steps=10",
                          "trainer.critic_warmup=2"))
    assert found["buffer.total_steps"] == 100 * 512 // 32 == 1600
    assert found["algorithm.optimizer.lr_warmup_steps"] == 160
    assert found["trainer.critic_warmup"] == 2 * 512 // 32 == 32
    assert "buffer.total_epochs" not in found


def test_kl_in_the_reward_and_in_the_loss():
    found = values(launch("algorithm.use_kl_in_reward=True", "algorithm.kl_penalty=mse",
                          "algorithm.kl_ctrl.kl_coef=0.02",
                          "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.target_kl=0.1",
                          "algorithm.kl_ctrl.horizon=10000", "actor_rollout_ref.actor.use_kl_loss=true"))
    assert found["algorithm.kl_penalty_fn"] == "k2"
    assert {k: found[f"algorithm.kl_penalty_fn_args.{k}"] for k in ("kl_coef", "adaptive", "target_kl", "horizon")} == {
        "kl_coef": 0.02, "adaptive": True, "target_kl": 0.1, "horizon": 10000}
    assert (found["algorithm.kl_loss_fn"], found["algorithm.kl_loss_fn_args.kl_coef"]) == ("low_var_kl", 0.001)


def test_kl_that_is_off_has_no_coefficient():
    made = from_verl(launch("actor_rollout_ref.actor.use_kl_loss=False", "actor_rollout_ref.actor.kl_loss_coef=0.1"))
    assert [g.key for g, _ in made.idle] == ["actor_rollout_ref.actor.kl_loss_coef"]


@pytest.mark.parametrize(("overrides", "low", "high"), [
    (["clip_ratio=0.1"], 0.1, 0.1), (["clip_ratio_low=0.2", "clip_ratio_high=0.28"], 0.2, 0.28),
    (["clip_ratio=0.1", "clip_ratio_high=0.3"], 0.1, 0.3), (["clip_ratio=0.1", "clip_ratio_low=0.05"], 0.05, 0.1),
    (["clip_ratio=0.1", "clip_ratio_low=0.2", "clip_ratio_high=0.28"], 0.2, 0.28)])
def test_the_clip_range(overrides, low, high):
    found = values(launch("algorithm.adv_estimator=grpo", *(f"actor_rollout_ref.actor.{o}" for o in overrides)))
    arguments = "algorithm.policy_loss_fn_args"
    assert (found[f"{arguments}.clip_range_low"], found[f"{arguments}.clip_range_high"]) == (low, high)


@pytest.mark.parametrize(("cap", "threshold"), [(2.0, 2.0), (5, 5), (-1, None)])
def test_truncated_importance_sampling(cap, threshold):
    found = values(launch("trainer.nnodes=1", f"actor_rollout_ref.actor.tis_imp_ratio_cap={cap}"))
    assert found.get("algorithm.rollout_correction.threshold") == threshold
    assert found.get("algorithm.bypass_old_logprobs") == (None if threshold is None else False)


@pytest.mark.parametrize(("overrides", "budget"), [
    (["actor_rollout_ref.actor.ppo_max_token_len_per_gpu=30000"], 30000),
    (["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"], 4 * (1000 + 2000)),
    (["actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2500"], 3000),  # a sequence is not cut
    ([], None)])
def test_the_budget_of_a_micro_batch(overrides, budget):
    found = values(launch("data.max_prompt_length=1000", "data.max_response_length=2000", *overrides))
    assert found.get("trainer.max_token_len_per_gpu") == budget


def test_a_long_sequence_raises_the_budget_above_the_default():
    found = values(launch("data.max_prompt_length=2048", "data.max_response_length=20480"))
    assert found["trainer.max_token_len_per_gpu"] == 22528


@pytest.mark.parametrize(("files", "names", "places"), [
    ("/d/gsm8k/train.parquet", ["gsm8k"], [("/d/gsm8k", "train")]),
    ("['/d/a/train.parquet', '/d/a/test.parquet']", ["a", "a_2"], [("/d/a", "train"), ("/d/a", "test")]),
    ("/d/dapo-math-17k.parquet", ["dapo_math_17k"], [("/d/dapo-math-17k.parquet", "train")]),
    ("~/x/train.parquet", ["x"], [("${oc.env:HOME}/x", "train")]),
    ("$D/train.parquet", ["tasks"], [("${oc.env:D}", "train")]),
    ("train.parquet", ["train"], [("train.parquet", "train")])])
def test_data_files_become_tasksets(files, names, places):
    found = values(launch(f'data.train_files="{files}"'))
    root = f"{INPUT}.tasksets"
    assert [found[f"{root}.{i}.name"] for i in range(len(names))] == names
    assert [(found[f"{root}.{i}.path"], found[f"{root}.{i}.split"]) for i in range(len(places))] == places


def test_a_file_that_is_here_says_where_its_truths_are(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pa.table({"prompt": [[{"role": "user", "content": "1+1"}]], "reward_model": [{"ground_truth": "2"}]})
    pq.write_table(rows, tmp_path / "train.parquet")
    pq.write_table(rows, tmp_path / "train_small.parquet")
    found = values(launch(f"data.train_files={tmp_path}/train.parquet"))
    assert found[f"{INPUT}.tasksets.0.format.response_key"] == "reward_model.ground_truth"
    assert found[f"{INPUT}.tasksets.0.path"] == f"{tmp_path}/train.parquet"  # the directory holds another train file


def test_evaluation_sets_are_sampled_as_val_kwargs_says():
    found = values(launch("data.val_files=[/d/a.parquet,/d/b.parquet]", "actor_rollout_ref.rollout.val_kwargs.n=4",
                          "actor_rollout_ref.rollout.val_kwargs.temperature=0.6"))
    for index in (0, 1):
        assert found[f"{INPUT}.eval_tasksets.{index}.repeat_times"] == 4
        assert found[f"{INPUT}.eval_tasksets.{index}.rollout_args.temperature"] == 0.6


@pytest.mark.parametrize(("logger", "monitor"), [
    ("['console','wandb']", "wandb"), ("console", "none"), ("['console']", "none"), ("['mlflow','wandb']", "mlflow"),
    ('["console","swanlab"]', "none"), ("tensorboard", "tensorboard")])
def test_the_monitor(logger, monitor):
    assert values(launch(f"trainer.logger={logger!r}" if "'" not in logger else f'trainer.logger="{logger}"'))[
        "monitor.monitor_type"] == monitor


def test_never_saving_and_never_testing_are_left_out():
    made = from_verl(launch("trainer.save_freq=-1", "trainer.test_freq=-1"))
    assert [g.key for g, _ in made.idle] == ["trainer.save_freq", "trainer.test_freq"]


@pytest.mark.parametrize(("script", "said"), [
    ("trainer.nnodes=4", "trainer.nnodes=4"), ("trainer.nnodes=$WORLD", "known only where the run starts"),
    ("trainer.nnodes=$(nproc)", "trainer.nnodes is not known: the output of a command")])
def test_more_machines_than_a_run_can_have_are_said(script, said):
    made = from_verl(launch(script, "trainer.n_gpus_per_node=8"))
    assert made.entries[("trainer", "ranks")].value == 8
    assert ("cluster", "node_num") not in made.entries
    assert [(g.key, why) for g, why in made.left_out] == [
        ("trainer.nnodes", "a run takes one machine: cluster.node_num is 1.")]
    note = next(text for text in made.chosen if text.startswith("cluster.node_num=1"))
    assert said in note
    assert ("8 GPUs instead of 32" in note) == (script == "trainer.nnodes=4")


def test_numbers_that_only_the_environment_knows_are_read_as_numbers():
    found = values(launch("trainer.n_gpus_per_node=$GPUS", "data.train_batch_size=$B", "data.max_prompt_length=$P"))
    assert found["cluster.gpu_per_node"] == "${oc.decode:${oc.env:GPUS}}"
    assert found["trainer.ranks"] == "${cluster.gpu_per_node}"
    assert found["model.max_prompt_tokens"] == "${oc.decode:${oc.env:P}}"
    assert "synchronizer.sync_interval" not in found


def test_what_would_bias_the_ratios_is_left_out():
    made = from_verl(launch("actor_rollout_ref.rollout.top_p=0.9", "actor_rollout_ref.rollout.top_k=-1"))
    assert [g.key for g, _ in made.left_out] == ["actor_rollout_ref.rollout.top_p"]
    assert made.entries[("model", "top_k")].value == -1


def test_a_critic_means_nothing_without_ppo():
    made = from_verl(launch("algorithm.adv_estimator=grpo", "critic.optim.lr=1e-5"))
    assert [why for _, why in made.idle] == ["there is no critic in grpo."]
    made = from_verl(launch("algorithm.adv_estimator=grpo", "trainer.critic_warmup=5"))
    assert [(g.key, why) for g, why in made.left_out] == [("trainer.critic_warmup", "there is no critic in grpo.")]


# -------------------------------------------------------------------------------------------------------------- forms


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
    assert [(u.given.key, u.why) for u in made.unknown] == [
        ("actor_rollout_ref.rollout.n", "a reference to data.nowhere, which is not given")]


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
    assert [line for line, text in made.skipped if "another command that starts veRL" in text] == [4]
    assert made.assumed == [(3, "data.train_batch_size is given again, first in line 2: the last one counts")]


def test_a_command_within_a_loop_is_read_once_and_its_variables_are_not_known():
    made = from_verl("for lr in 1e-6 2e-6; do\n" + launch("actor_rollout_ref.actor.optim.lr=$lr", "trainer.nnodes=1")
                      + "\ndone")
    assert made.entries[("cluster", "node_num")].value == 1
    assert [(u.given.key, u.given.line, u.to) for u in made.unknown] == [
        ("actor_rollout_ref.actor.optim.lr", 3, ["algorithm.optimizer.lr"])]
    assert made.assumed == [(1, "the command that starts veRL stands in the `for` of line 1 (up to line 5): it was "
                                "read once, as if it ran")]
    assert made.skipped == []


def test_a_forgotten_backslash_is_named_with_its_line():
    made = from_verl("python3 -m verl.trainer.main_ppo \\\n  data.train_batch_size=64\n  trainer.nnodes=1\n")
    assert ("cluster", "node_num") not in made.entries
    assert any(line == 3 and "a backslash missing" in text for line, text in made.skipped)


def test_a_word_that_is_no_override_is_named():
    made = from_verl(launch("trainer.nnodes=1", "data.train_files=[a, b]"))
    assert (3, "b]: is no override") in made.skipped


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
    ("echo hello\n", "found no command that starts veRL"), ("", "holds no settings"),
    ("- a\n- b\n", "holds no settings"),
    ("a: [1\n", "line 2"), ("a: 1\na: 2\n", "there twice")])
def test_a_source_without_anything_of_verl_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
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


@pytest.mark.parametrize(("given", "kept"), [((), None), (("3",), 3), (("null",), None), (("-1",), None)])
def test_all_checkpoints_are_kept_unless_a_number_above_0_is_given(given, kept):
    """veRL's checkpoint manager deletes only when the number is above 0."""
    found = written(from_verl(launch("trainer.nnodes=1", *(f"trainer.max_actor_ckpt_to_keep={n}" for n in given))))
    assert found["trainer.max_checkpoints_to_keep"] == kept


@pytest.mark.parametrize(("gpus", "split", "engines"), [("8", 2, 1), ("16", 2, 2), ("1", 1, 1)])
def test_engines_have_verls_gpus_where_the_script_is_silent(gpus, split, engines):
    """veRL's default of tensor_model_parallel_size is 2; a quarter of the GPUs is for engines of so many each."""
    found = written(from_verl(launch(f"trainer.n_gpus_per_node={gpus}")))
    model = "explorer.rollout_model"
    assert (found[f"{model}.tensor_parallel_size"], found[f"{model}.engine_num"]) == (split, engines)


def test_a_launch_without_keys_is_one_with_verls_defaults():
    found = written(from_verl("python3 -m verl.trainer.main_ppo"))
    assert (found["algorithm.algorithm_type"], found["synchronizer.sync_interval"]) == ("ppo", 4)  # 1024 / 256
