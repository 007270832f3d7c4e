"""Keys of veRL's machinery: few have a counterpart, most have no effect here, and each has a reason."""

import pytest

from tests.bridges import from_verl, launch, written

ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))


def made_of(*overrides: str):
    return from_verl(launch("algorithm.adv_estimator=grpo", *overrides))


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
