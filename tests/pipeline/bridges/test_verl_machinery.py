"""Keys of veRL's machinery: few have a counterpart, most have no effect here, and each has a reason."""

import pytest

from tests.bridges import from_verl, launch, written

ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))


def made_of(*overrides: str):
    return from_verl(launch("algorithm.adv_estimator=grpo", *overrides))


@pytest.mark.parametrize(("override", "key", "value"), [
    (f"{ACTOR}.megatron.param_offload=True", "trainer.offload_param", True),
    (f"{ACTOR}.megatron.optimizer_offload=True", "trainer.offload_optimizer", True),
    (f"+{ACTOR}.optim.override_optimizer_config.optimizer_cpu_offload=True", "trainer.offload_optimizer", True),
    (f"{ACTOR}.optim.lr_decay_style='constant'", "algorithm.optimizer.lr_scheduler_type", "constant"),
    (f"{ACTOR}.optim.lr_decay_style=WSD", "algorithm.optimizer.lr_scheduler_type", "wsd"),
    ("+data.apply_chat_template_kwargs.enable_thinking=False", "model.enable_thinking", False)])
def test_what_has_a_counterpart_is_carried(override, key, value):
    assert written(made_of(override))[key] == value


@pytest.mark.parametrize("override", [
    f"{ROLLOUT}.profiler.ranks=[0,1]", f"{ACTOR}.profile_ranks=[0]", "global_profiler.tool=nsys",
    "trainer.profile_steps=[1,2]", "profile.options.level=level1", "transfer_queue.enable=True",
    f"{ROLLOUT}.update_weights_bucket_megabytes=128", f"{ROLLOUT}.data_parallel_size=1",
    f"{ROLLOUT}.quantization=null", f"{MODEL}.use_rmpad=True", f"{ACTOR}._target_=verl.workers.config.ActorConfig",
    f"{ACTOR}.fsdp_config.fsdp_size=-1", f"{ACTOR}.ulysses_sequence_parallel_size=1",
    f"{ACTOR}.megatron.tensor_model_parallel_size=2", f"{ACTOR}.optim.override_optimizer_config=null",
    "trainer.use_legacy_worker_impl=disable", "algorithm.use_pf_ppo=False", "distillation.enabled=False"])
def test_what_changes_nothing_here_is_told_as_such(override):
    made = made_of(override)
    assert [given.key for given, _ in made.idle] == [override.partition("=")[0]]
    assert made.left_out == []


@pytest.mark.parametrize("override", [
    f"{ROLLOUT}.data_parallel_size=2", f"{ROLLOUT}.quantization=fp8", f"{ACTOR}.ulysses_sequence_parallel_size=4",
    f"{ACTOR}.optim.min_lr=1e-7", "algorithm.use_pf_ppo=True", f"{ACTOR}.optim.optimizer=Muon",
    f"{MODEL}.mtp.enable=True"])
def test_what_is_lost_is_left_out_with_a_reason(override):
    (given, why), = made_of(override).left_out
    assert given.key == override.partition("=")[0]
    assert "no counterpart known" not in why


def test_what_the_reward_had_before_it_had_a_switch_is_said():
    """Up to 0.3 a kl_coef alone put the KL into the reward, unless the loss had one."""
    def told(*overrides):
        return [note for note in made_of(*overrides).chosen if "Up to veRL 0.3" in note]

    assert "kl_penalty_fn_args.kl_coef=0.01" in told("algorithm.kl_ctrl.kl_coef=0.01")[0]
    assert not told("algorithm.kl_ctrl.kl_coef=0.0")
    assert not told("algorithm.kl_ctrl.kl_coef=0.01", "algorithm.use_kl_in_reward=False")
    assert not told("algorithm.kl_ctrl.kl_coef=0.01", f"{ACTOR}.use_kl_loss=True")


@pytest.mark.parametrize("options", ["--config-path=./config --config-name='ppo_megatron_trainer'",
                                     "--config-path config --config-name ppo_trainer.yaml"])
def test_a_configuration_that_verl_ships_is_no_file_that_was_not_read(options):
    made = from_verl(f"python3 -m verl.trainer.main_ppo {options} trainer.nnodes=1\n")
    assert made.skipped == []
    own = from_verl("python3 -m verl.trainer.main_ppo --config-path=c --config-name=mine trainer.nnodes=1\n")
    assert [line for line, _ in own.skipped] == [1, 1]


def test_a_scoring_model_under_its_newer_name():
    made = made_of("reward.reward_model.enable=True", "reward.reward_model.model_path=/m/rm",
                   "data.train_files=/d/train.parquet")
    assert written(made)["explorer.auxiliary_models.0.model_path"] == "/m/rm"
    assert written(made)["buffer.explorer_input.default_reward_fn_type"] == "reward_model"


def test_a_configuration_of_the_newer_sft_trainer_is_one_of_sft():
    made = from_verl("data: {train_files: /d/a.parquet, messages_key: talk, pad_mode: no_padding}\n"
                     "trainer: {total_epochs: 2}\n", "sft.yaml")
    found = written(made)
    assert (found["algorithm.algorithm_type"], found["buffer.total_epochs"]) == ("sft", 2)
    assert found["buffer.trainer_input.experience_buffer.format.messages_key"] == "talk"


def test_the_adapter_of_the_megatron_trainer():
    made = made_of(f"{MODEL}.lora.rank=8", f"{MODEL}.lora.target_modules=[linear_qkv]", f"{MODEL}.lora_alpha=64")
    found = written(made)
    assert (found["model.lora_configs.0.lora_rank"], found["model.lora_configs.0.lora_alpha"]) == (8, 32)  # its default
    assert [given.key for given, _ in made.left_out] == [f"{MODEL}.lora.target_modules"]


def test_an_adapter_of_rank_0_is_none():
    made = made_of(f"{MODEL}.lora.rank=0", f"{MODEL}.lora.alpha=16", f"{MODEL}.lora_rank=0", f"{MODEL}.lora.type=lora")
    assert not any("lora" in key for key in written(made))
    assert made.left_out == []
