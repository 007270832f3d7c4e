"""veRL's keys in a configuration of Trinity-RFT: below trainer.trainer_config, and where they do not belong."""

import pytest

from ouroboros.pipeline.store.errors import ConfigError
from tests.bridges import from_trinity, from_verl, launch, written
from tests.golden.messages import refuses, wording

ACTOR = "actor_rollout_ref.actor"


def config(*of_verl: tuple[str, object], algorithm: str = "ppo") -> str:
    """A configuration with some of veRL's keys, each dotted below trainer_config."""
    lines = [f"algorithm: {{algorithm_type: {algorithm}}}", "buffer: {batch_size: 8}", "trainer:", "  trainer_config:"]
    return "\n".join([*lines, *(f"    {key}: {value}" for key, value in of_verl)])


def left_out(made) -> dict[str, str]:
    return {given.key.removeprefix("trainer.trainer_config."): why for given, why in [*made.left_out, *made.idle]}


@pytest.mark.parametrize(("theirs", "value", "ours"), [
    (f"{ACTOR}.ppo_max_token_len_per_gpu", 24000, "trainer.max_token_len_per_gpu"),
    (f"{ACTOR}.optim.lr_warmup_steps", 30, "algorithm.optimizer.lr_warmup_steps"),
    (f"{ACTOR}.optim.weight_decay", 0.2, "algorithm.optimizer.weight_decay"),
    ("trainer.max_actor_ckpt_to_keep", 5, "trainer.max_checkpoints_to_keep")])
def test_a_key_with_a_counterpart_is_translated(theirs, value, ours):
    made = from_trinity(config((theirs, value)))
    assert written(made)[ours] == value
    assert [given.key for given, _ in made.renamed] == [f"trainer.trainer_config.{theirs}"]


@pytest.mark.parametrize(("key", "value", "algorithm", "why"), [
    ("trainer.save_freq", 13, "ppo", "trainer.save_interval sets it, there and here."),
    ("trainer.test_freq", 7, "ppo", "explorer.eval_interval sets it"),
    ("trainer.total_training_steps", 90, "ppo", "trainer.total_steps sets it"),
    ("trainer.max_actor_ckpt_to_keep", -1, "ppo", "disabled there too"),
    ("actor_rollout_ref.ref.ulysses_sequence_parallel_size", 1, "ppo", "disabled there too: "),
    (f"{ACTOR}.fsdp_config.fsdp_size", -1, "ppo", "disabled there too: DeepSpeed ZeRO splits the model"),
    ("algorithm.lam", 0.8, "grpo", "write algorithm.advantage_fn_args.lam, if the advantage function takes it."),
    (f"{ACTOR}.clip_ratio", 0.3, "ppo", "write clip_range_low and clip_range_high"),
    (f"{ACTOR}.kl_loss_coef", 0.01, "ppo", "algorithm.kl_loss_fn_args sets it, there and here."),
    ("data.train_batch_size", 64, "ppo", "buffer.batch_size sets it, there and here."),
    ("algorithm.adv_estimator", "gae", "ppo", "algorithm.advantage_fn sets it"),
    ("x.y", 3, "ppo", "settings of veRL's trainer")])
def test_a_key_that_says_nothing_is_left_out_with_a_true_reason(key, value, algorithm, why):
    assert left_out(from_trinity(config((key, value), algorithm=algorithm)))[key].startswith(why)


def test_of_a_stage_the_stages_own_settings_are_meant():
    found = written(from_trinity("stages: [{stage_name: a, algorithm: {algorithm_type: ppo}, trainer: {trainer_config: "
                                 "{actor_rollout_ref: {actor: {clip_ratio_low: 0.1, clip_ratio_high: 0.2}}}}}]"))
    arguments = "stages.0.algorithm.policy_loss_fn_args.clip_range"
    assert (found[f"{arguments}_low"], found[f"{arguments}_high"]) == (0.1, 0.2)


def test_the_sections_of_verl_alone_are_sent_to_the_other_command():
    with refuses(ConfigError, "veRL", "actor_rollout_ref", "ouro", "verl"):
        from_trinity("actor_rollout_ref: {actor: {grad_clip: 1.0}}\ntrainer: {critic_warmup: 0}")


def test_a_key_of_verl_at_the_root_is_sent_below_trainer_config():
    made = from_trinity("buffer: {batch_size: 4}\nactor_rollout_ref: {actor: {grad_clip: 0.5}}")
    wording(left_out(made)["actor_rollout_ref.actor.grad_clip"], "veRL")
    assert "trainer.grad_clip" not in written(made)


def test_a_model_that_the_users_code_asks_is_kept_whole():
    made = from_trinity("buffer: {batch_size: 4, explorer_input: {default_reward_fn_type: custom_reward}}\n"
                        "explorer: {auxiliary_models: [{model_path: /m, enable_thinking: true, max_prompt_tokens: 5, "
                        "max_response_tokens: 5, max_model_len: 10}]}")
    assert {key.rpartition(".")[2]: value for key, value in written(made).items() if key.startswith("explorer")} == {
        "model_path": "/m", "enable_thinking": True, "max_prompt_tokens": 5, "max_response_tokens": 5,
        "max_model_len": 10}
    assert made.left_out == []


def test_models_of_several_have_names_and_one_that_nobody_asks_is_left_out():
    models = "explorer: {auxiliary_models: [{model_path: /a}, {model_path: /b}]}"
    made = from_trinity("buffer: {batch_size: 4, explorer_input: {default_workflow_type: my_own}}\n" + models)
    assert [written(made)[f"explorer.auxiliary_models.{i}.name"] for i in range(2)] == ["model_0", "model_1"]
    made = from_trinity("buffer: {batch_size: 4, explorer_input: {default_workflow_type: math_workflow}}\n" + models)
    assert not any(key.startswith("explorer") for key in written(made))
    assert len(made.idle) == 2


@pytest.mark.parametrize(("theirs", "ours"), [("max_checkpoints_to_keep: 0", None), ("max_checkpoints_to_keep: 3", 3),
                                              ("max_checkpoints_to_keep: null", None), ("grad_clip: 1.0", None)])
def test_all_checkpoints_are_kept_unless_a_number_is_given(theirs, ours):
    made = from_trinity(f"buffer: {{batch_size: 4}}\ntrainer: {{{theirs}}}")
    assert written(made)["trainer.max_checkpoints_to_keep"] == ours
    assert made.left_out == []


@pytest.mark.parametrize(("actor", "others", "lost"), [(2, 2, 0), (2, 4, 2)])
def test_the_split_of_reference_and_critic_says_nothing_where_it_is_the_actors(actor, others, lost):
    of = {name: {"ulysses_sequence_parallel_size": size} for name, size in (("actor", actor), ("ref", others))}
    made = from_trinity(f"buffer: {{batch_size: 4}}\nalgorithm: {{algorithm_type: ppo}}\ntrainer: {{trainer_config: "
                        f"{{actor_rollout_ref: {of}, critic: {of['ref']}}}}}")
    assert len(made.left_out) == lost
    words = [f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={actor}",
             *(f"{part}.ulysses_sequence_parallel_size={others}" for part in ("actor_rollout_ref.ref", "critic"))]
    kept = [given.key for given, _ in from_verl(launch("algorithm.adv_estimator=gae", *words)).left_out]
    assert len([key for key in kept if "ulysses" in key]) == lost
