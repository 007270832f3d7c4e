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
    "algorithm.use_pf_ppo=True", f"{ACTOR}.optim.optimizer=Muon", f"{MODEL}.mtp.enable=True"])
def test_what_is_lost_is_left_out_with_a_reason(override):
    (given, why), = made_of(override).left_out
    assert given.key == override.partition("=")[0]
    assert "no counterpart known" not in why


def test_the_adapter_of_the_megatron_trainer():
    made = made_of(f"{MODEL}.lora.rank=8", f"{MODEL}.lora.target_modules=[linear_qkv]", f"{MODEL}.lora_alpha=64")
    found = written(made)
    assert (found["model.lora_configs.0.lora_rank"], found["model.lora_configs.0.lora_alpha"]) == (8, 32)  # its default
    assert [given.key for given, _ in made.left_out] == [f"{MODEL}.lora.target_modules"]


def test_an_adapter_of_rank_0_is_none():
    made = made_of(f"{MODEL}.lora.rank=0", f"{MODEL}.lora.alpha=16", f"{MODEL}.lora_rank=0", f"{MODEL}.lora.type=lora")
    assert not any("lora" in key for key in written(made))
    assert made.left_out == []
