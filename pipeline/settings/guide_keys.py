"""Trinity-RFT guide keys that mean the same here, under the same name or another.

A key is dotted, with `*` for the element of a list and for the name of an auxiliary buffer. Keys below another share
its entry unless they have their own. Keys that say what always holds are in guide_always.py, those without a meaning
here in guide_refused.py.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Works:
    """Same name and meaning. note: restrictions on the value."""

    note: str = ""


@dataclass(frozen=True)
class Renamed:
    """Another name here. values: the original's value -> ours; empty: unchanged. note: further differences."""

    to: str
    values: dict[Any, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Always:
    """Nothing to choose here: accepted with a value that holds, and without effect. values: these. why: what holds."""

    values: tuple
    why: str

    def holds(self, key: str, value: Any) -> bool:
        """Returns whether a value holds for a dotted key; `int` among the values is any number that is not negative,
        `OWN_NAME` the name above the key."""
        if int in self.values and type(value) in (int, float) and value >= 0:
            return True
        if OWN_NAME in self.values and value == key.split(".")[-2]:
            return True
        return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in self.values)


@dataclass(frozen=True)
class Refused:
    """Has no meaning here. why: one sentence with the alternative. idle: values that disable it.

    loses: the part of the task itself that an import lacks without it, one of bridges/translation.py's TASK. equals: a
    key of the source that has a meaning here; with its value this one says nothing more.
    """

    why: str
    idle: tuple = ()
    loses: str = ""
    equals: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Translated(Refused):
    """Written in another way here, which an import does where it can. to: the setting; note: how. why: where it
    cannot."""

    to: str = ""
    note: str = ""


Fate = Works | Renamed | Always | Refused | Translated
OWN_NAME = object()

TASKSETS = ("buffer.explorer_input.taskset", "buffer.explorer_input.tasksets.*",
            "buffer.explorer_input.eval_tasksets.*")
BUFFERS = ("buffer.trainer_input.experience_buffer", "buffer.trainer_input.auxiliary_buffers.*")


def _below(prefix: str, names: str) -> list[str]:
    return [f"{prefix}.{name}" for name in names.split()]


FORMAT = _below("format", "prompt_type prompt_key response_key messages_key tools_key system_prompt system_prompt_key "
                          "chosen_key rejected_key")
OF_TASKSETS = ["name", "path", "storage_type", "subset_name", "split", *FORMAT, "repeat_times", "workflow_args",
               "default_workflow_type", "default_reward_fn_type", "reward_fn_args", "data_selector.selector_type",
               "data_selector.seed", "data_selector.feature_keys", "data_selector.kwargs",
               *_below("format", "workflow_key reward_fn_key reply_prefix"),
               *_below("rollout_args", "temperature top_p top_k max_tokens")]
OF_BUFFERS = ["name", "path", "storage_type", "subset_name", "split", *FORMAT, "format.enable_concatenated_multi_turn"]

WORKS = [
    "project", "name", "mode", "checkpoint_root_dir", "continue_from_checkpoint", "ignore_validator_suggestions",
    "stages",
    *_below("algorithm", "algorithm_type repeat_times sample_strategy sample_strategy_args advantage_fn "
                         "advantage_fn_args policy_loss_fn policy_loss_fn_args kl_penalty_fn kl_penalty_fn_args "
                         "kl_loss_fn kl_loss_fn_args entropy_loss_fn entropy_loss_fn_args loss_agg_mode "
                         "bypass_old_logprobs rollout_correction"),
    *_below("algorithm.optimizer", "lr betas weight_decay lr_scheduler_type lr_warmup_steps lr_warmup_steps_ratio "
                                   "min_lr_ratio"),
    *_below("model", "model_path critic_model_path custom_chat_template chat_template_path enable_thinking "
                     "rope_scaling rope_theta trust_remote_code "
                     "max_model_len max_prompt_tokens max_response_tokens min_response_tokens "
                     "enable_prompt_truncation repetition_penalty temperature top_p top_k lora_configs"),
    *_below("model.lora_configs.*", "name path lora_rank lora_alpha lora_dtype target_modules"),
    *_below("cluster", "node_num gpu_per_node"),
    *_below("buffer", "batch_size train_batch_size total_epochs total_steps"),
    *_below("buffer.explorer_input", "default_workflow_type default_eval_workflow_type default_reward_fn_type"),
    *(f"{prefix}.{name}" for prefix in TASKSETS for name in OF_TASKSETS),
    *(f"{prefix}.{name}" for prefix in BUFFERS for name in OF_BUFFERS if (prefix, name) != (BUFFERS[1], "name")),
    *_below(f"{BUFFERS[0]}.replay_buffer", "enable priority_fn priority_fn_args"),
    *_below("explorer", "eval_interval eval_on_startup bench_on_latest_checkpoint env_vars max_timeout "
                       "over_rollout.ratio"),
    *_below("explorer.auxiliary_models.*", "model_path engine_num tensor_parallel_size "
                                           "enable_thinking max_prompt_tokens max_response_tokens"),
    *_below("explorer.rollout_model", "engine_type engine_num tensor_parallel_size gpu_memory_utilization "
                                      "enforce_eager seed extra_engine_args"),
    *_below("synchronizer", "sync_method sync_style sync_interval sync_offset sync_timeout"),
    *_below("trainer", "save_interval grad_clip use_dynamic_bsz max_token_len_per_gpu max_checkpoints_to_keep "
                       "critic_warmup ulysses_sequence_parallel_size"),
    *_below("monitor", "monitor_type monitor_args monitor_args.base_url monitor_args.uri"),
    *_below("data_processor.experience_pipeline", "operators save_input"),
    *_below("data_processor.task_pipeline", "num_process operators config_path inputs target_fields top_k"),
    "log.level",
]

NOTED = {
    **{f"{prefix}.format.{name}": Works("rows name functions of here, such as simple_workflow for math_workflow")
       for prefix in TASKSETS for name in ("workflow_key", "reward_fn_key")},
    f"{BUFFERS[0]}.replay_buffer.reuse_cooldown_time": Works(
        "in trainer steps, not in seconds, by which no run could be repeated"),
    "algorithm.advantage_fn_args": Works(
        "but for step_reward_key and env_state_hash_key (gigpo: the columns step_reward and state_hash of a workflow), "
        "temperature and chunk_size (jsd: the teacher is scored at model.temperature, its logits in chunks)"),
    "algorithm.policy_loss_fn_args": Works(
        "but for loss_agg_mode, sft_loss_agg_mode and grpo_loss_agg_mode (algorithm.loss_agg_mode, for both kinds of "
        "rows) and the sizes of batches (mix, mix_chord: the batch tells them)"),
    "explorer.over_rollout.wait_after_min": Works(
        "0 unless it is given, not 30, which an import writes; of more groups than are needed, those that come first "
        "in the step are taken"),
    "data_processor.task_pipeline.priority_weights": Works(
        "but the tasks keep the order of their file where neither it nor top_k is given; diversity counts; "
        "usage_frequency is 0 for all, since no task was used before"),
    "explorer.max_retry_times": Works("0 unless it is given, not 2; also of a reward function that raised"),
    **{f"explorer.dynamic_timeout{name}": Works("of the training tasks; an attempt's time counts from its start")
       for name in ("", ".enable", ".ratio")},
    "explorer.dynamic_timeout.warmup_min_steps": Works("counted anew after each start of a stage"),
    "explorer.max_timeout": Works("of the workflow's and the reward function's own code, not of the engine"),
    "algorithm.optimizer.min_lr_ratio": Works("0 unless it is given, not 0.01"),
}

SECRETS = _below("monitor.monitor_args", "api_key username password")

_VLLM = "handed to vLLM as it is"

RENAMED = {
    "algorithm.optimizer.warmup_style": Renamed("algorithm.optimizer.lr_scheduler_type"),
    "algorithm.optimizer.clip_grad": Renamed("trainer.grad_clip"),
    **{f"{prefix}.task_selector.{name}": Renamed(f"{prefix}.data_selector.{name}")
       for prefix in TASKSETS for name in ("selector_type", "seed", "feature_keys", "kwargs")},
    **{f"{prefix}.format.{name}": Renamed(f"model.{to}", note="one for all data, since one model reads it")
       for prefix in (*TASKSETS, *BUFFERS)
       for name, to in (("chat_template", "custom_chat_template"), ("enable_thinking", "enable_thinking"))},
    **{f"{prefix}.rollout_args.n": Renamed("algorithm.repeat_times", note="of an evaluation set its repeat_times")
       for prefix in TASKSETS[:2]},
    f"{TASKSETS[2]}.rollout_args.n": Renamed(f"{TASKSETS[2]}.repeat_times"),
    "explorer.rollout_model.tool_call_parser": Renamed("explorer.tool_call_parser"),
    "explorer.rollout_model.chat_template": Renamed("model.custom_chat_template"),
    "explorer.rollout_model.dtype": Renamed("model.dtype", note="one for trainer and engine"),
    **{key: Renamed(f"model.{key.rpartition('.')[2]}") for key in _below(
        "explorer.rollout_model", "model_path max_model_len max_prompt_tokens max_response_tokens min_response_tokens "
                                  "temperature top_p top_k repetition_penalty enable_prompt_truncation "
                                  "enable_thinking")},
    **{f"explorer.rollout_model.{name}": Renamed(f"explorer.rollout_model.extra_engine_args.{name}", note=_VLLM)
       for name in ("enable_prefix_caching", "enable_chunked_prefill", "enable_expert_parallel")},
    "trainer.total_steps": Renamed("buffer.total_steps"),
    "trainer.ppo_max_token_len_per_gpu": Renamed("trainer.max_token_len_per_gpu"),
    "trainer.trainer_strategy": Renamed("trainer.zero_stage", {"fsdp": 3, "fsdp2": 3},
                                        "ZeRO-3 shards parameters, gradients and optimizer states as FSDP does"),
    "trainer.param_offload": Renamed("trainer.offload_param", note="with trainer.zero_stage=3"),
    "trainer.optimizer_offload": Renamed("trainer.offload_optimizer"),
    "trainer.grad_offload": Renamed("trainer.offload_optimizer", note="by which gradients leave the GPU too"),
    "trainer.offload_policy": Renamed("trainer.offload_optimizer", note="parameters: trainer.offload_param"),
    "explorer.rollout_model.rope_scaling": Renamed("model.rope_scaling", note="one for trainer and engine"),
    "explorer.rollout_model.rope_theta": Renamed("model.rope_theta", note="one for trainer and engine"),
    "explorer.rollout_model.data_parallel_size": Renamed(
        "explorer.rollout_model.engine_num", note="times engine_num: copies of the model are engines of their own"),
    "synchronizer.explorer_sync_interval": Renamed("synchronizer.sync_interval", note=(
        "with sync_style=explorer_driven; with fixed both sides follow one schedule")),
    "synchronizer.trainer_sync_interval": Renamed("synchronizer.sync_interval", note=(
        "with sync_style=trainer_driven; with fixed both sides follow one schedule")),
}

# values that are written differently here
MEANT: dict[str, dict[Any, Any]] = {
    "algorithm.optimizer.lr_warmup_steps": {-1: 0},
    "synchronizer.sync_method": {"offline": "checkpoint"},
    "explorer.rollout_model.engine_type": {"external": "openai"},
    "algorithm.algorithm_type": {"grpo_verl": "grpo"},  # the same algorithm, computed in the trainer there
    "algorithm.advantage_fn": {"grpo_verl": "grpo", "opmd_verl": "opmd", "asymre_verl": "asymre"},
    "model.top_k": {0: -1},
    "log.level": {name.lower(): name for name in ("DEBUG", "INFO", "WARNING", "ERROR")},
    "trainer.max_checkpoints_to_keep": {0: None},
    **{f"{prefix}.default_reward_fn_type": dict.fromkeys(("math_reward", "math_boxed_reward"), "accuracy_reward")
       for prefix in ("buffer.explorer_input", *TASKSETS)},
}
# workflows of the guide whose name alone has another one here: an import translates their arguments too
WORKFLOWS = dict.fromkeys(("math_workflow", "math_boxed_workflow"), "simple_workflow")

# refused values of supported keys: key -> value -> sentence
_BY_FILES = "weights go through files, and every hand-over is proved: leave it out, or write checkpoint."
_STEPS = ("there tasks are sent and rows are taken without steps of the explorer; here a step is made and resumed as a "
          "whole: write trainer_driven, with synchronizer.max_staleness as a bound.")
_TABLES = "experience is Parquet tables, which `ouro sql` asks: leave storage_type and its address out."
_VLLM_ONLY = "vLLM is the engine: leave it out."
_DAPO_REWARD = ("write [accuracy_reward, overlong_penalty] with cache_length, max_response_length and penalty_factor "
                "below reward_fn_args, or without enable_overlong_penalty accuracy_reward. There right is 1 and wrong "
                "-1, here 1 and 0, so penalty_factor 0.5 means here what 1 means there.")
VALUES: dict[str, dict[Any, str]] = {
    **{f"{prefix}.default_reward_fn_type": {"math_dapo_reward": _DAPO_REWARD}
       for prefix in ("buffer.explorer_input", *TASKSETS)},
    "algorithm.sample_strategy": {
        "warmup": "train on demonstrations in a stage of their own, algorithm_type=sft."},
    "mode": {"serve": "`ouro serve --record` records what a running application asks, and a stage with mode=train "
                      "learns from it (docs/serve.md)."},
    "synchronizer.sync_method": dict.fromkeys(("nccl", "memory", "online"), _BY_FILES),
    "synchronizer.sync_style": {"fully_async": _STEPS, **{f"dynamic_by_{side}": (
        f"the name of older releases: write {side}_driven.") for side in ("explorer", "trainer")}},
    "explorer.rollout_model.engine_type": {
        "vllm_async": _VLLM_ONLY, "sglang": _VLLM_ONLY,
        "tinker": _VLLM_ONLY + " An adapter is trained here by model.lora_configs."},
    "model.lora_configs.*.lora_dtype": dict.fromkeys(
        ("float32", "float16", "bfloat16"),
        "an adapter has model.dtype, its master weights and optimizer float32: leave it out."),
    "trainer.trainer_strategy": {"megatron": "DeepSpeed ZeRO splits the model: trainer.zero_stage=3."},
    "monitor.monitor_type": {"swanlab": "needed mlflow, tensorboard, wandb or none."},
    **{f"{prefix}.storage_type": dict.fromkeys(("queue", "sql"), _TABLES) for prefix in (*TASKSETS, *BUFFERS)},
}

# keys of which only some values are supported: key -> those values, why no other
ONLY: dict[str, tuple[tuple, str]] = {
    "model.min_response_tokens": ((0, 1), "the engine would forbid the end of a response up to there, of which the "
                                          "trainer knows nothing: its ratios would be biased. Leave it out."),
    "model.repetition_penalty": ((1,), "the trainer scores the distribution without it: its ratios would be "
                                           "biased. Leave it out."),
    "model.enable_prompt_truncation": ((True,), "what was asked would not be what the row says: a prompt that is too "
                                                "long is kept whole, as a marked row. Leave it out."),
    "trainer.use_dynamic_bsz": ((True,), "micro-batches are packed to a budget of tokens, "
                                         "trainer.max_token_len_per_gpu, never to a number of rows. Leave it out."),
}
