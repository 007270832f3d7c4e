"""Launch scripts and configurations of veRL: what is decided by several keys at once."""

import pytest

from tests.bridges import from_verl, launch
from tests.bridges import values_of_verl as values
from tests.golden.messages import wording

ENGINES = "explorer.rollout_model.engine_num"
INPUT = "buffer.explorer_input"


@pytest.mark.parametrize(("estimator", "algorithm", "advantage"), [
    ("gae", "ppo", "ppo"), ("grpo", "grpo", "grpo"), ("reinforce_plus_plus", "reinforceplusplus", "reinforceplusplus"),
    ("rloo", "rloo", "rloo"), ("remax", "remax", "remax"), ("opo", "opo", "opo"), ("gpg", "gpg", None)])
def test_the_estimator_names_the_algorithm(estimator, algorithm, advantage):
    made = from_verl(launch(f"algorithm.adv_estimator={estimator}"))
    assert [made.value("algorithm", key) for key in ("algorithm_type", "advantage_fn")] == [algorithm, advantage]
    assert any("algorithm.algorithm_type=gpg" in line for line in made.chosen) == (estimator == "gpg")


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
    assert ("not a multiple" in told) == (train % mini != 0 and mini < train)
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


@pytest.mark.parametrize(("overrides", "idle"), [
    (["actor_rollout_ref.actor.use_kl_loss=False", "actor_rollout_ref.actor.kl_loss_coef=0.1"],
     ["actor_rollout_ref.actor.kl_loss_coef"]),  # of a KL that is off
    (["trainer.save_freq=-1", "trainer.test_freq=-1"], ["trainer.save_freq", "trainer.test_freq"]),  # never
    (["algorithm.adv_estimator=grpo", "data.train_files=/d/dapo.parquet", "reward_model.reward_manager=dapo"],
     ["reward_model.reward_manager"]),
    (["ray_init.num_cpus=$(nproc)", "trainer.nnodes=1"], ["ray_init.num_cpus"])])
def test_what_has_no_effect_is_idle_and_not_unknown(overrides, idle):
    made = from_verl(launch(*overrides))
    assert ([g.key for g, _ in made.idle], made.unknown) == (idle, [])


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
    (["data.max_prompt_length=2048", "data.max_response_length=20480"], 22528),  # above the default
    ([], None)])
def test_the_budget_of_a_micro_batch(overrides, budget):
    found = values(launch("data.max_prompt_length=1000", "data.max_response_length=2000", *overrides))
    assert found.get("trainer.max_token_len_per_gpu") == budget


@pytest.mark.parametrize(("files", "names", "places"), [
    ("/d/gsm8k/train.parquet", ["gsm8k"], [("/d/gsm8k", "train")]),
    ("['/d/a/train.parquet', '/d/a/test.parquet']", ["a", "a_2"], [("/d/a", "train"), ("/d/a", "test")]),
    ("/d/dapo-math-17k.parquet", ["dapo_math_17k"], [("/d/dapo-math-17k.parquet", "train")]),
    ("~/x/train.parquet", ["x"], [("${oc.env:HOME}/x", "train")]),
    ("\\${oc.env:D}/train.parquet", ["tasks"], [("${oc.env:D}", "train")]),
    ("train.parquet", ["train"], [("train.parquet", "train")])])
def test_data_files_become_tasksets(files, names, places):
    found = values(launch(f'data.train_files="{files}"'))
    root = f"{INPUT}.tasksets"
    assert [found[f"{root}.{i}.name"] for i in range(len(names))] == names
    assert [(found[f"{root}.{i}.path"], found[f"{root}.{i}.split"]) for i in range(len(places))] == places


def test_truths_are_where_the_rewards_of_verl_read_them(tmp_path):
    """reward_model.ground_truth, whether the file is here or not; `answer` only where a file has nothing else."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = {"prompt": [[{"role": "user", "content": "1+1"}]], "answer": ["1 and 1 is 2"]}
    for name in ("train", "train_small"):
        pq.write_table(pa.table(rows | {"reward_model": [{"ground_truth": "2"}]}), tmp_path / f"{name}.parquet")
    pq.write_table(pa.table(rows), tmp_path / "plain.parquet")
    files = {"/nowhere/train.parquet": "reward_model.ground_truth",
             f"{tmp_path}/train.parquet": "reward_model.ground_truth", f"{tmp_path}/plain.parquet": "answer"}
    found = values(launch(f'data.train_files="{list(files)}"'))
    assert [found[f"{INPUT}.tasksets.{i}.format.response_key"] for i in range(3)] == list(files.values())
    assert found[f"{INPUT}.tasksets.1.path"] == f"{tmp_path}/train.parquet"  # the directory holds another train file


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


@pytest.mark.parametrize(("script", "said"), [
    ("'trainer.nnodes=${oc.env:WORLD}'", "known only where the run starts"),
    ("trainer.nnodes=$(nproc)", "trainer.nnodes is not known: the output of $(nproc)")])
def test_an_unknown_number_of_machines_is_one(script, said):
    made = from_verl(launch(script, "trainer.n_gpus_per_node=8"))
    assert made.entries[("trainer", "ranks")].value == 8
    assert ("cluster", "node_num") not in made.entries
    assert [g.key for g, _ in made.left_out] == ["trainer.nnodes"]
    assert said in made.left_out[0][1]


@pytest.mark.parametrize(("more", "expected"), [
    ([], [4, 8, 32, 16]), (["reward_model.enable=True", "reward_model.model.path=/m"], [None, 8, 8, 4])])
def test_several_machines_train_and_answer_on_all_their_gpus_and_a_model_that_scores_keeps_a_run_on_one(more, expected):
    """4 machines of 8 GPUs: 32 ranks, and 32 / 2 = 16 engines of 2 GPUs, the same number on every machine."""
    found = values(launch("trainer.nnodes=4", "trainer.n_gpus_per_node=8", *more))
    assert [found.get(key) for key in (
        "cluster.node_num", "cluster.gpu_per_node", "trainer.ranks", ENGINES)] == expected


def test_numbers_that_only_the_environment_knows_are_read_as_numbers():
    found = values(launch("'trainer.n_gpus_per_node=${oc.env:GPUS}'", "'data.train_batch_size=${oc.env:B}'",
                          "'data.max_prompt_length=${oc.env:P}'"))
    assert found["cluster.gpu_per_node"] == "${oc.decode:${oc.env:GPUS}}"
    assert (found["trainer.ranks"], ENGINES in found) == ("${cluster.gpu_per_node}", False)
    of_one = values(launch("'trainer.n_gpus_per_node=${oc.env:GPUS}'",
                           "actor_rollout_ref.rollout.tensor_model_parallel_size=1"))
    assert of_one[ENGINES] == "${cluster.gpu_per_node}"
    assert found["model.max_prompt_tokens"] == "${oc.decode:${oc.env:P}}"
    assert "synchronizer.sync_interval" not in found


@pytest.mark.parametrize(("top_k", "left_out"), [(-1, {"top_p"}), (50, set()), (2000, {"top_p", "top_k"})])
def test_truncated_sampling_is_kept_with_a_bound_on_what_is_kept(top_k, left_out):
    made = from_verl(launch("actor_rollout_ref.rollout.top_p=0.9", f"actor_rollout_ref.rollout.top_k={top_k}"))
    assert {g.key for g, _ in made.left_out} == {f"actor_rollout_ref.rollout.{name}" for name in left_out}
    assert made.value("model", "top_k") == (None if "top_k" in left_out else top_k)
    assert made.value("model", "top_p") == (None if "top_p" in left_out else 0.9)


def test_a_critic_means_nothing_without_ppo():
    made = from_verl(launch("algorithm.adv_estimator=grpo", "critic.optim.lr=1e-5"))
    wording([[why for _, why in made.idle]], "critic")
    made = from_verl(launch("algorithm.adv_estimator=grpo", "trainer.critic_warmup=5"))
    wording([[(g.key, why) for g, why in made.left_out]], "trainer.critic_warmup", "critic")


def test_several_passes_are_over_all_that_a_step_generates():
    """256 tasks of 8 responses, in 64 x 8 rows; one explorer step is then one step of veRL."""
    actor = "actor_rollout_ref.actor"
    given = ["data.train_batch_size=256", f"{actor}.ppo_mini_batch_size=64", "actor_rollout_ref.rollout.n=8",
             f"{actor}.ppo_epochs=4", "trainer.total_training_steps=100"]
    found = values(launch(*given, f"{actor}.shuffle=True"))
    assert (found["buffer.batch_size"], found["buffer.train_batch_size"], found["synchronizer.sync_interval"]) == (
        256, 2048, 1)
    assert (found["trainer.ppo_epochs"], found["trainer.ppo_mini_batch_size"]) == (4, 512)
    assert (found["trainer.shuffle_mini_batches"], found["buffer.total_steps"]) == (True, 100)
    whole = values(launch(*given, f"{actor}.ppo_mini_batch_size=256"))
    assert (whole["trainer.ppo_epochs"], whole.get("trainer.ppo_mini_batch_size")) == (4, None)


@pytest.mark.parametrize(("loss", "key", "value"), [("kl_cov", "kl_cov_ratio", 2e-3), ("clip_cov", "clip_cov_ub", 7.0)])
def test_the_entropy_recipe(loss, key, value):
    policy = "actor_rollout_ref.actor.policy_loss"
    script = launch("algorithm.adv_estimator=grpo", f"{policy}.loss_mode={loss}", f"{policy}.{key}={value}")
    found = values(script.replace("verl.trainer.main_ppo", "recipe.entropy.main_entropy"))
    assert (found["algorithm.policy_loss_fn"], found[f"algorithm.policy_loss_fn_args.{key}"]) == (loss, value)


@pytest.mark.parametrize(("estimator", "loss", "expected"), [
    ("gdpo", "clip_cov", ("gdpo", "clip_cov", None)), ("grpo_passk", "kl_cov", ("grpo_passk", "kl_cov", 0.1)),
    ("reinforce_plus_plus_baseline", "geo_mean", ("reinforceplusplus_baseline", "gmpo", None)),
    ("grpo", "dppo_tv", ("grpo", "dppo_tv", None))])
def test_more_estimators_and_losses_have_a_counterpart(estimator, loss, expected):
    found = values(launch(f"algorithm.adv_estimator={estimator}",
                          f"actor_rollout_ref.actor.policy_loss.loss_mode={loss}"))
    assert (found["algorithm.advantage_fn"], found["algorithm.policy_loss_fn"],
            found.get("algorithm.policy_loss_fn_args.ppo_kl_coef")) == expected
    assert found.get("algorithm.policy_loss_fn_args.clip_ratio_c") == (3.0 if loss == "dppo_tv" else None)
