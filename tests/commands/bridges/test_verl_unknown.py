"""Values of a script that only running it would tell: listed as unknown, never replaced by a default of veRL's."""

import pytest

from ouroboros.commands.bridges.report import write
from tests.bridges import from_verl, launch, written
from tests.golden.messages import wording

CASE = "case $(nproc) in\n  1) N=4 ;;\n  *) N=8 ;;\nesac\n"
N, MINI, STEP = "actor_rollout_ref.rollout.n", "actor_rollout_ref.actor.ppo_mini_batch_size", "data.train_batch_size"


def unknown(made) -> dict[str, list[str]]:
    """veRL's key -> our keys that have no value."""
    return {u.given.key: u.to for u in made.unknown}


def test_a_variable_that_a_case_sets_has_neither_its_default_nor_verls():
    made = from_verl(CASE + launch(f"{N}=${{N:-5}}", f"{MINI}=64", f"{STEP}=256"))
    assert unknown(made) == {N: ["algorithm.repeat_times"]}
    found = written(made)
    assert "algorithm.repeat_times" not in found
    assert "buffer.train_batch_size" not in found  # 64 x n
    assert (found["buffer.batch_size"], found["synchronizer.sync_interval"]) == (64, 4)
    wording(write(made, "x"), "algorithm.repeat_times (actor_rollout_ref.rollout.n=${N:-5})")


@pytest.mark.parametrize("more", [
    "if [ $(nproc) -gt 4 ]; then\n  ARGS+=(trainer.nnodes=1 actor_rollout_ref.rollout.n=8)\nfi",
    "[ $(nproc) -gt 4 ] && ARGS+=(trainer.nnodes=1 actor_rollout_ref.rollout.n=8)"])
def test_what_a_condition_adds_to_an_array_is_unknown_and_the_rest_of_the_array_is_read(more):
    made = from_verl(f'ARGS=({MINI}=64 {N}=2)\n{more}\npython3 -m verl.trainer.main_ppo {STEP}=128 "${{ARGS[@]}}"\n')
    assert unknown(made) == {N: ["algorithm.repeat_times"]}
    assert written(made)["synchronizer.sync_interval"] == 2
    assert "buffer.train_batch_size" not in written(made)


def test_a_default_is_taken_where_nothing_else_sets_the_variable():
    made = from_verl(launch(f"{N}=${{N:-5}}"))
    assert written(made)["algorithm.repeat_times"] == 5
    wording([made.assumed], "(2,", "taken: 5")
    assert made.unknown == []


@pytest.mark.parametrize(("before", "value"), [
    ("", "$(nproc)"), ("", "`nproc`"), ("", "$1"), ("B=$((8 * $(nproc)))\n", "$B"), ("B=$(nproc)\n", "$((B * 2))"),
    ("read B\nB+=$(cat x)\n", "$B")])
def test_an_unknown_step_of_verl_leaves_out_what_is_counted_in_it(before, value):
    """lr_warmup_steps and total_training_steps are multiplied by train_batch_size / ppo_mini_batch_size."""
    warmup = "actor_rollout_ref.actor.optim.lr_warmup_steps"
    made = from_verl(before + launch(f"{STEP}={value}", f"{MINI}=64", f"{N}=2", f"{warmup}=5",
                                     "trainer.total_training_steps=9"))
    assert unknown(made) == {STEP: ["synchronizer.sync_interval"]}
    found = written(made)
    assert (found["buffer.batch_size"], found["buffer.train_batch_size"]) == (64, 128)
    absent = {"synchronizer.sync_interval", "algorithm.optimizer.lr_warmup_steps", "buffer.total_steps",
              "buffer.total_epochs"}
    assert absent & set(found) == set()
    assert [g.key for g, _ in made.left_out] == ["trainer.total_training_steps", warmup]
    wording(made.chosen, "synchronizer.sync_interval")


@pytest.mark.parametrize(("key", "ours"), [
    ("algorithm.adv_estimator", "algorithm.algorithm_type"),
    ("actor_rollout_ref.actor.use_kl_loss", "algorithm.kl_loss_fn"),
    ("algorithm.use_kl_in_reward", "algorithm.kl_penalty_fn"),
    ("actor_rollout_ref.actor.policy_loss.loss_mode", "algorithm.policy_loss_fn"),
    ("actor_rollout_ref.actor.clip_ratio_high", "algorithm.policy_loss_fn_args.clip_range_high"),
    (MINI, "buffer.batch_size"), ("trainer.n_gpus_per_node", "cluster.gpu_per_node"),
    ("data.max_prompt_length", "model.max_prompt_tokens"), ("trainer.total_epochs", "buffer.total_epochs"),
    ("data.train_files", "buffer.explorer_input.tasksets"), ("trainer.save_freq", "trainer.save_interval"),
    ("trainer.logger", "monitor.monitor_type"), ("trainer.project_name", "project"),
    ("trainer.default_local_dir", "checkpoint_root_dir"), ("actor_rollout_ref.model.path", "model.model_path"),
    ("actor_rollout_ref.rollout.gpu_memory_utilization", "explorer.rollout_model.gpu_memory_utilization"),
    ("trainer.val_before_train", "explorer.eval_on_startup"), ("trainer.critic_warmup", "trainer.critic_warmup")])
def test_of_an_unknown_key_nothing_is_written(key, ours):
    made = from_verl(launch(f"{key}=$(cat x)"))
    assert unknown(made) == {key: [ours]}
    assert [k for k in written(made) if k.startswith(ours)] == []


def test_ranks_do_not_follow_from_an_unknown_number_of_gpus():
    made = from_verl(launch("trainer.n_gpus_per_node=$(nvidia-smi -L | wc -l)"))
    assert {"trainer.ranks", "explorer.rollout_model.engine_num"} & set(written(made)) == set()
    wording(made.chosen, "GPUs: trainer.n_gpus_per_node")


def test_a_critic_of_an_unknown_algorithm():
    made = from_verl(launch("algorithm.adv_estimator=$1", "critic.optim.lr=1e-5", "trainer.critic_warmup=3"))
    why = "only ppo has a critic, and algorithm.adv_estimator is not known."
    assert [(g.key, said) for g, said in made.left_out] == [("trainer.critic_warmup", why), ("critic.optim.lr", why)]


@pytest.mark.parametrize(("override", "told"), [
    (f"{N}=-3", "as algorithm.repeat_times: needed at least 1; our default applies."),
    (f"{N}=many", "as algorithm.repeat_times: needed a whole number, found the text 'many'; our default applies."),
    ("data.max_prompt_length=2.5",
     "as model.max_prompt_tokens: needed a whole number, found 2.5; our default applies."),
    ("trainer.val_before_train=maybe",
     "as explorer.eval_on_startup: needed true or false, found the text 'maybe'; our default applies.")])
def test_a_value_that_cannot_stand_here_is_told_and_not_written(override, told):
    made = from_verl(launch("algorithm.adv_estimator=grpo", override))
    assert [why for _, why in made.left_out] == [told]
    assert "buffer.train_batch_size" not in written(made) or N not in override


def test_the_last_of_two_overrides_counts_though_it_is_unknown():
    made = from_verl(launch(f"{N}=4", f"{N}=$(cat n)"))
    assert unknown(made) == {N: ["algorithm.repeat_times"]}
    assert made.keys == 1
    wording([made.assumed], "(3,", N, "line 2")


@pytest.mark.parametrize(("more", "key", "ours"), [
    (["algorithm.use_kl_in_reward=True"], "algorithm.kl_ctrl.type", ["algorithm.kl_penalty_fn_args.adaptive"]),
    (["actor_rollout_ref.actor.policy_loss.loss_mode=gspo"], "actor_rollout_ref.actor.clip_ratio",
     ["algorithm.policy_loss_fn_args.clip_range_low", "algorithm.policy_loss_fn_args.clip_range_high"]),
    (["actor_rollout_ref.actor.clip_ratio=0.3"], "actor_rollout_ref.actor.clip_ratio_low",
     ["algorithm.policy_loss_fn_args.clip_range_low"]),
    ([], "actor_rollout_ref.actor.tis_imp_ratio_cap", ["algorithm.rollout_correction.threshold"])])
def test_an_unknown_key_has_no_default_from_another(more, key, ours):
    made = from_verl(launch("algorithm.adv_estimator=grpo", *more, f"{key}=$(cat x)"))
    assert unknown(made) == {key: ours}
    assert not set(ours) & set(written(made))
