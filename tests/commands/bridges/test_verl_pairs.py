"""The two worked pairs of the guide: scripts of veRL and the values that a configuration is to have.

Expected values of the pairs are those of the guide "Align configuration with veRL", key by key. Departures, each said
by the tool: engines take all GPUs, as in veRL; save_freq and test_freq count steps of veRL, of 4 optimizer steps each;
sync_offset is 0 (the guide's text asks for it, its examples have 1); the reward model is one copy, on the
GPUs that all share, and named as the reward; truths are where veRL's rewards read them; math's
rollout_args.temperature, 1.0, is the default and is not written.
"""

import pytest

from tests.bridges import SOURCES, from_verl, launch, written

INPUT = "buffer.explorer_input"


def a_set(kind: str, index: int, name: str, path: str, split: str) -> dict:
    root = f"{INPUT}.{kind}.{index}"
    return {f"{root}.name": name, f"{root}.path": path, f"{root}.split": split, f"{root}.format.prompt_key": "prompt",
            f"{root}.format.response_key": "reward_model.ground_truth"}


HOME = "${oc.env:HOME}"
OF_BOTH = {
    "checkpoint_root_dir": "./checkpoints", "algorithm.kl_penalty_fn": "none", "algorithm.optimizer.lr": 1e-6,
    "model.enable_prompt_truncation": True, "model.max_response_tokens": 512, "cluster.node_num": 1,
    "cluster.gpu_per_node": 8, "buffer.total_epochs": 15, "buffer.batch_size": 256, "explorer.eval_interval": 20,
    "explorer.rollout_model.gpu_memory_utilization": 0.6, "synchronizer.sync_style": "fixed",
    "synchronizer.sync_offset": 0, "synchronizer.sync_interval": 4, "trainer.save_interval": 80,
    "trainer.critic_warmup": 0, "trainer.enable_gradient_checkpointing": True, "trainer.offload_param": False,
    "trainer.offload_optimizer": False, "monitor.monitor_type": "wandb",
    **a_set("tasksets", 0, "gsm8k", f"{HOME}/data/gsm8k", "train"),
    **a_set("eval_tasksets", 0, "gsm8k_eval", f"{HOME}/data/gsm8k", "test"),
}
PPO = OF_BOTH | {
    "project": "verl_example", "name": "Qwen2-7B-Instruct_hybrid_rm", "algorithm.algorithm_type": "ppo",
    "algorithm.repeat_times": 1, "algorithm.optimizer.lr_warmup_steps_ratio": 0.1, "algorithm.advantage_fn": "ppo",
    "algorithm.kl_loss_fn": "none", "model.model_path": f"{HOME}/models/Qwen2-7B-Instruct",
    "model.critic_model_path": f"{HOME}/models/Qwen2-7B-Instruct", "model.max_prompt_tokens": 1024,
    "buffer.train_batch_size": 256, "explorer.eval_on_startup": False,
    "explorer.rollout_model.engine_num": 8, "explorer.rollout_model.tensor_parallel_size": 1,
    "explorer.auxiliary_models.0.model_path": f"{HOME}/models/FsfairX-LLaMA3-RM-v0.1",
    "trainer.critic.optimizer.lr": 1e-5, "trainer.critic.optimizer.lr_warmup_steps_ratio": 0.05,
    **a_set("tasksets", 1, "math", f"{HOME}/data/math", "train"),
    **a_set("eval_tasksets", 1, "math_eval", f"{HOME}/data/math", "test"),
}
GRPO = OF_BOTH | {
    "project": "verl_grpo_example_gsm8k", "name": "deepseek_llm_7b_function_rm_seq_packing",
    "algorithm.algorithm_type": "grpo", "algorithm.repeat_times": 8, "algorithm.advantage_fn": "grpo",
    "algorithm.kl_loss_fn": "low_var_kl", "algorithm.kl_loss_fn_args.kl_coef": 0.001,
    "algorithm.entropy_loss_fn_args.entropy_coef": 0, "model.model_path": "deepseek-ai/deepseek-llm-7b-chat",
    "model.max_prompt_tokens": 512, "buffer.train_batch_size": 2048, "explorer.rollout_model.engine_num": 4,
    "explorer.rollout_model.tensor_parallel_size": 2, "trainer.use_dynamic_bsz": True,
    "trainer.max_token_len_per_gpu": 24000,
}


@pytest.mark.parametrize(("script", "wanted"), [("ppo_reward_model.sh", PPO), ("grpo_seq_balance.sh", GRPO)])
def test_the_worked_pairs_have_the_values_of_the_guide(script, wanted):
    found = written(from_verl((SOURCES / script).read_text()))
    assert {key: found.get(key, "missing") for key in wanted} == wanted
    # beyond the guide: where the trainer runs (all 8 GPUs, as in veRL), how prompts lie in veRL's files, the reward,
    # all checkpoints kept, and for the PPO script a micro-batch of 16 rows x (1024 + 512) tokens = 24576
    beyond = {"trainer.max_checkpoints_to_keep": None, "mode": "colocate", "trainer.ranks": 8, "trainer.zero_stage": 3,
              f"{INPUT}.default_reward_fn_type": "reward_model" if wanted is PPO else "accuracy_reward"}
    if wanted is PPO:  # its evaluation sets must say what is solved
        beyond |= {f"{INPUT}.eval_tasksets.{i}.default_reward_fn_type": "accuracy_reward" for i in (0, 1)}
    beyond |= {k: "messages" for k in found if k.endswith("prompt_type")}
    beyond |= {"trainer.max_token_len_per_gpu": 24576} if wanted is PPO else {"explorer.eval_on_startup": True}
    assert {k: v for k, v in found.items() if k not in wanted} == {k: v for k, v in beyond.items() if k not in wanted}


@pytest.mark.parametrize(("script", "keys", "left", "idle"), [
    ("ppo_reward_model.sh", 47, 4, 9), ("grpo_seq_balance.sh", 36, 0, 4)])
def test_every_key_of_the_worked_pairs_is_accounted_for(script, keys, left, idle):
    made = from_verl((SOURCES / script).read_text())
    assert (made.keys, len(made.renamed), len(made.left_out), len(made.idle)) == (keys, keys - left - idle, left, idle)
    assert not [given.key for given, why in made.left_out if "no counterpart" in why]


@pytest.mark.parametrize("value", ["after_each_epoch", "'${oc.env:EVERY}'"])
def test_an_interval_that_cannot_be_converted_is_left_out(value):
    """A step of veRL is 1024 / 256 = 4 optimizer steps: what is no number cannot be multiplied by it."""
    made = from_verl(launch(f"trainer.save_freq={value}"))
    assert "trainer.save_interval" not in written(made)
    assert [given.key for given, _ in made.left_out] == ["trainer.save_freq"]
