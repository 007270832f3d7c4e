"""Every key of veRL that has a counterpart here by itself, and those of which is known why they have none.

After the tables of the Trinity-RFT guide "Align configuration with veRL", and veRL's own documentation of its
configuration. What several keys say together is in verl_objective.py, verl_rules.py and verl_data.py; the keys of its
machinery are in verl_machinery.py.
"""

from pipeline.bridges import verl_machinery
from pipeline.settings.guide_keys import Refused, Renamed

A, R, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"
CRITIC, DATA = "critic", "data"
OPTIMIZER = "algorithm.optimizer"
SCHEDULES = {"constant": "constant", "cosine": "cosine", "linear": "linear"}

RENAMED = {
    "actor_rollout_ref.model.path": Renamed("model.model_path"),
    "actor_rollout_ref.model.enable_gradient_checkpointing": Renamed("trainer.enable_gradient_checkpointing"),
    "actor_rollout_ref.model.custom_chat_template": Renamed("model.custom_chat_template"),
    **{f"actor_rollout_ref.model.{theirs}": Renamed(f"model.lora_configs.*.{ours}") for theirs, ours in (
        ("lora_rank", "lora_rank"), ("lora_alpha", "lora_alpha"), ("target_modules", "target_modules"),
        ("exclude_modules", "exclude_modules"), ("lora_adapter_path", "path"))},
    f"{A}.optim.lr": Renamed(f"{OPTIMIZER}.lr"),
    f"{A}.optim.weight_decay": Renamed(f"{OPTIMIZER}.weight_decay"),
    f"{A}.optim.betas": Renamed(f"{OPTIMIZER}.betas"),
    f"{A}.optim.warmup_style": Renamed(f"{OPTIMIZER}.lr_scheduler_type", SCHEDULES),
    f"{A}.optim.lr_scheduler_type": Renamed(f"{OPTIMIZER}.lr_scheduler_type", SCHEDULES),
    f"{A}.optim.lr_warmup_steps_ratio": Renamed(f"{OPTIMIZER}.lr_warmup_steps_ratio"),
    f"{A}.optim.min_lr_ratio": Renamed(f"{OPTIMIZER}.min_lr_ratio"),
    f"{A}.optim.clip_grad": Renamed("trainer.grad_clip"),
    f"{A}.grad_clip": Renamed("trainer.grad_clip"),
    f"{A}.use_dynamic_bsz": Renamed("trainer.use_dynamic_bsz", {True: True}),
    f"{A}.clip_ratio_low": Renamed("algorithm.policy_loss_fn_args.clip_range_low"),
    f"{A}.clip_ratio_high": Renamed("algorithm.policy_loss_fn_args.clip_range_high"),
    f"{A}.clip_ratio_c": Renamed("algorithm.policy_loss_fn_args.clip_ratio_c"),
    f"{A}.loss_agg_mode": Renamed("algorithm.loss_agg_mode"),
    f"{A}.use_token_level_loss": Renamed("algorithm.loss_agg_mode", {True: "token-mean", False: "seq-mean-token-mean"}),
    f"{A}.entropy_coeff": Renamed("algorithm.entropy_loss_fn_args.entropy_coef"),
    f"{A}.fsdp_config.param_offload": Renamed("trainer.offload_param"),
    f"{A}.fsdp_config.optimizer_offload": Renamed("trainer.offload_optimizer"),
    f"{ROLLOUT}.n": Renamed("algorithm.repeat_times"),
    f"{ROLLOUT}.temperature": Renamed("model.temperature"),
    f"{ROLLOUT}.top_p": Renamed("model.top_p"),
    f"{ROLLOUT}.top_k": Renamed("model.top_k"),
    f"{ROLLOUT}.gpu_memory_utilization": Renamed("explorer.rollout_model.gpu_memory_utilization"),
    f"{ROLLOUT}.tensor_model_parallel_size": Renamed("explorer.rollout_model.tensor_parallel_size"),
    f"{ROLLOUT}.enforce_eager": Renamed("explorer.rollout_model.enforce_eager"),
    f"{ROLLOUT}.max_num_seqs": Renamed("explorer.rollout_model.max_num_seqs"),
    f"{ROLLOUT}.seed": Renamed("explorer.rollout_model.seed"),
    f"{ROLLOUT}.dtype": Renamed("model.dtype"),
    f"{ROLLOUT}.max_model_len": Renamed("model.max_model_len"),
    **{f"{ROLLOUT}.{name}": Renamed(f"explorer.rollout_model.extra_engine_args.{name}")
       for name in ("enable_chunked_prefill", "enable_prefix_caching", "max_num_batched_tokens")},
    f"{CRITIC}.model.path": Renamed("model.critic_model_path"),
    f"{CRITIC}.optim.lr": Renamed("trainer.critic.optimizer.lr"),
    f"{CRITIC}.optim.weight_decay": Renamed("trainer.critic.optimizer.weight_decay"),
    f"{CRITIC}.optim.lr_warmup_steps_ratio": Renamed("trainer.critic.optimizer.lr_warmup_steps_ratio"),
    f"{CRITIC}.optim.warmup_style": Renamed("trainer.critic.optimizer.lr_scheduler_type", SCHEDULES),
    f"{CRITIC}.cliprange_value": Renamed("trainer.critic.cliprange_value"),
    "trainer.critic_warmup": Renamed("trainer.critic_warmup"),
    f"{DATA}.max_prompt_length": Renamed("model.max_prompt_tokens"),
    f"{DATA}.max_response_length": Renamed("model.max_response_tokens"),
    f"{DATA}.filter_overlong_prompts": Renamed("model.enable_prompt_truncation", {True: True}),
    "trainer.nnodes": Renamed("cluster.node_num"),
    "trainer.n_gpus_per_node": Renamed("cluster.gpu_per_node"),
    "trainer.total_epochs": Renamed("buffer.total_epochs"),
    "trainer.val_before_train": Renamed("explorer.eval_on_startup"),
    "trainer.resume_mode": Renamed("continue_from_checkpoint", {"auto": True, "resume_path": True, "disable": False}),
    **verl_machinery.RENAMED,
}

BUDGET = "micro-batches are token budgets here: trainer.max_token_len_per_gpu."
_REFERENCE = ("log-probs of the reference are a column that is computed once, not a model beside the actor: it has no "
              "settings of its own.")
_ONE_SETTING = "one setting holds for actor and critic here, and the actor's was taken."
PACKED = "always so: sequences are packed without padding."
_ONE_PASS = "each experience is trained on once."
_MODEL_ITSELF = "belongs to the model: change its config.json, or name another model."
_ADAPTERS = "the critic trains all of its own parameters; model.lora_configs is the policy's."
NO_SPLIT = "a sequence is not split over GPUs yet."
_CURATED = "belongs to reading the data, which is curated once, before training (data_processor.task_pipeline)."
_OWN_READER = "code of your own that reads or makes data: write what it makes into files, and name those as tasksets."
_ANSWERS_ONLY = "every response is in the table experience, and `ouro sql` shows it."
BY_ZERO = verl_machinery.BY_ZERO
_NO_RAY = "there is no Ray here."
_KERNELS = "kernels are chosen by trainer.attention."
OWN_LAYOUT = "a checkpoint holds the model and its exact state, in the stage's own directory."
_ALWAYS = "always so."
_OWN_DIRECTORY = "a run has a directory of its own, with its logs in it."
_COLOCATED = "said by mode=colocate."
_PUBLISHED = verl_machinery.PUBLISHED
_TOGETHER = "all attempts of a step go to the engine together."
_ORDER = "one optimizer step takes a whole train batch, so its order says nothing."
_OFF_KL_LOSS = "means nothing without actor_rollout_ref.actor.use_kl_loss=True."
_OFF_OVERLONG = "means nothing without overlong_buffer_cfg.enable=True."
_OFF_KL_PENALTY = "means nothing without algorithm.use_kl_in_reward=True."
FOLLOWS = "follows from the length of the run."
_SLEEPS = "always so in mode=colocate: the engine sleeps while the trainer works."
_RECOMPUTED = "always so: the output head is recomputed in the backward pass."
_CHUNKED = "always so: trainer.logprob_chunk_tokens."
_KEPT = "the log-prob of every sampled token is always kept."
_TRUNCATION = ("a prompt over model.max_prompt_tokens takes no part in the loss, so it does not matter how it would be "
               "cut.")
_WHOLE_EVALUATION = "an evaluation takes all its tasks."
_BALANCED = "always so: every rank gets as many micro-batches as the others."
_IN_SAMPLES = "every response of an evaluation is in the table samples."
_SECONDS = verl_machinery.SECONDS
_GREEDY = "greedy accuracy is always measured beside the sampled one."
_STARTED = "the longest wait is synchronizer.sync_timeout."

# reasons of keys without which nothing is missing here
WITHOUT_EFFECT = (BUDGET, PACKED, _REFERENCE, _CURATED, _ANSWERS_ONLY, BY_ZERO, _NO_RAY, _KERNELS, OWN_LAYOUT,
                  _ALWAYS, _COLOCATED, _PUBLISHED, _TOGETHER, _ORDER, _OFF_KL_LOSS, _OFF_KL_PENALTY, FOLLOWS, _SLEEPS,
                  _RECOMPUTED, _CHUNKED, _KEPT, _TRUNCATION, _WHOLE_EVALUATION, _BALANCED, _IN_SAMPLES, _SECONDS,
                  _GREEDY, _STARTED, _OFF_OVERLONG, _OWN_DIRECTORY, *verl_machinery.IDLE)

REFUSED = {
    "actor_rollout_ref.hybrid_engine": Refused(_COLOCATED),
    "actor_rollout_ref.nccl_timeout": Refused(_STARTED),
    **{f"{model}.{name}": Refused(why) for model in ("actor_rollout_ref.model", "critic.model") for name, why in (
        ("use_remove_padding", PACKED), ("use_liger", _KERNELS), ("use_fused_kernels", _KERNELS),
        ("fused_kernel_options", _KERNELS), ("external_lib", _MODEL_ITSELF), ("override_config", _MODEL_ITSELF),
        ("trust_remote_code", "no code of a model is run."),
        ("use_shm", "weights are read from where they lie."), ("hdfs_path", "weights are read from a directory."),
        ("tokenizer_path", "the tokenizer is read from the model's directory."),
        ("enable_activation_offload", "not there yet: trainer.enable_gradient_checkpointing saves the same memory."))},
    **{f"critic.model.{name}": Refused(_ADAPTERS, (0,)) for name in (
        "lora_rank", "lora_alpha", "target_modules", "exclude_modules", "lora_adapter_path")},
    **{f"{part}.{name}{unit}": Refused(BUDGET) for part, name in (
        (A, "ppo_micro_batch_size"), (R, "log_prob_micro_batch_size"), (ROLLOUT, "log_prob_micro_batch_size"),
        (CRITIC, "ppo_micro_batch_size"), (CRITIC, "forward_micro_batch_size")) for unit in ("", "_per_gpu")},
    **{f"{part}.{name}": Refused(BUDGET) for part in (R, ROLLOUT)
       for name in ("log_prob_use_dynamic_bsz", "log_prob_max_token_len_per_gpu")},
    f"{CRITIC}.forward_max_token_len_per_gpu": Refused(BUDGET),
    **{f"{part}.ulysses_sequence_parallel_size": Refused(NO_SPLIT, (1,)) for part in (A, R, CRITIC)},
    **{f"{part}.{name}": Refused(why) for part in (A, R, CRITIC) for name, why in (
        ("strategy", BY_ZERO), ("profiler", _SECONDS))},
    **{f"{part}.{name}": Refused(why) for part in (A, R) for name, why in (
        ("entropy_from_logits_with_chunking", _CHUNKED),
        ("entropy_checkpointing", _RECOMPUTED),
        ("use_torch_compile", _KERNELS))},
    f"{A}.checkpoint": Refused(OWN_LAYOUT),
    f"{CRITIC}.checkpoint": Refused(OWN_LAYOUT),
    f"{A}.optim.total_training_steps": Refused(FOLLOWS),
    f"{A}.optim.num_cycles": Refused("the cosine falls once, from lr to lr x min_lr_ratio."),
    f"{A}.shuffle": Refused(_ORDER),
    f"{A}.data_loader_seed": Refused(_ORDER),
    f"{A}.kl_loss_coef": Refused(_OFF_KL_LOSS),
    f"{A}.kl_loss_type": Refused(_OFF_KL_LOSS),
    f"{A}.fsdp_config.fsdp_size": Refused(BY_ZERO, (-1,)),
    f"{A}.fsdp_config.wrap_policy.min_num_params": Refused(BY_ZERO, (0,)),
    f"{A}.fsdp_config": Refused(BY_ZERO),
    f"{A}.fsdp_config.ulysses_sequence_parallel_size": Refused(NO_SPLIT, (1,)),
    f"{A}.policy_loss": Refused("arguments of a loss go below algorithm.policy_loss_fn_args."),
    R: Refused(_REFERENCE),
    f"{ROLLOUT}.name": Refused("vLLM is the engine.", ("vllm",)),
    f"{ROLLOUT}.mode": Refused(_TOGETHER),
    f"{ROLLOUT}.load_format": Refused(_PUBLISHED),
    f"{ROLLOUT}.layered_summon": Refused(_PUBLISHED),
    f"{ROLLOUT}.free_cache_engine": Refused(_SLEEPS),
    f"{ROLLOUT}.multi_stage_wake_up": Refused("the engine wakes once, to load weights."),
    f"{ROLLOUT}.disable_log_stats": Refused(_ALWAYS),
    f"{ROLLOUT}.do_sample": Refused(_ALWAYS),
    f"{ROLLOUT}.ignore_eos": Refused("a response ends with its end token."),
    f"{ROLLOUT}.prompt_length": Refused("set model.max_prompt_tokens."),
    f"{ROLLOUT}.response_length": Refused("set model.max_response_tokens."),
    f"{ROLLOUT}.calculate_log_probs": Refused(_KEPT),
    f"{ROLLOUT}.engine_kwargs": Refused("arguments of vllm.LLM go below explorer.rollout_model.extra_engine_args."),
    f"{ROLLOUT}.val_kwargs.do_sample": Refused(_GREEDY),
    f"{ROLLOUT}.multi_turn": Refused("a dialogue is a workflow of your own: "
                                     "buffer.explorer_input.default_workflow_type=package.module:function."),
    f"{ROLLOUT}.agent": Refused("a dialogue is a workflow of your own: "
                                "buffer.explorer_input.default_workflow_type=package.module:function."),
    f"{CRITIC}.model.enable_gradient_checkpointing": Refused(_ONE_SETTING),
    f"{CRITIC}.model.fsdp_config": Refused(_ONE_SETTING),
    f"{CRITIC}.grad_clip": Refused(_ONE_SETTING),
    f"{CRITIC}.use_dynamic_bsz": Refused(BUDGET),
    f"{CRITIC}.ppo_max_token_len_per_gpu": Refused(_ONE_SETTING),
    f"{CRITIC}.ppo_mini_batch_size": Refused("actor and critic take the same train batch."),
    f"{CRITIC}.ppo_epochs": Refused(_ONE_PASS, (1,)),
    f"{CRITIC}.shuffle": Refused(_ORDER),
    f"{CRITIC}.optim.total_training_steps": Refused(FOLLOWS),
    f"{CRITIC}.model.tokenizer_path": Refused("the tokenizer is read from the model's directory."),
    f"{CRITIC}.enable": Refused("said by algorithm.algorithm_type: ppo has a critic."),
    f"{A}.ppo_epochs": Refused(_ONE_PASS, (1,)),
    "reward_model": Refused("of a scoring model there is to say what stands below explorer.auxiliary_models: its "
                            "path, copies, dtype, and the tokens of a batch.", (("enable", False),)),
    **dict.fromkeys(("reward_model.reward_manager", "reward.reward_manager", "reward.reward_manager.name"), Refused(
        "rewards are functions here: buffer.explorer_input.default_reward_fn_type.", ("naive", "dapo"))),
    **dict.fromkeys(("reward_model.reward_kwargs.max_resp_len", "reward.reward_kwargs.max_resp_len"),
                    Refused(_OFF_OVERLONG)),
    **dict.fromkeys(("reward_model.reward_kwargs", "reward.reward_kwargs"), Refused(
        "arguments of a reward function go below reward_fn_args of the taskset.")),
    **dict.fromkeys(("reward_model.overlong_buffer", "reward_model.reward_kwargs.overlong_buffer_cfg",
                     "reward.reward_kwargs.overlong_buffer_cfg", "custom_reward_function.overlong_buffer"), Refused(
        "the penalty is a reward function beside the one that says what is right, not beside a reward model: "
        "overlong_penalty in buffer.explorer_input.default_reward_fn_type.", (("enable", False),))),
    **dict.fromkeys(("custom_reward_function", "reward.custom_reward_function"), Refused(
        "veRL calls f(data_source, solution_str, ground_truth, extra_info), ours is f(response, answer): wrap it, and "
        "name it by buffer.explorer_input.default_reward_fn_type=package.module:function.")),
    f"{DATA}.truncation": Refused(_TRUNCATION),
    f"{DATA}.gen_batch_size": Refused("an explorer step draws as many tasks as it trains on; rounds of fresh ones: "
                                      "algorithm.max_resample_rounds."),
    f"{DATA}.val_batch_size": Refused(_WHOLE_EVALUATION),
    f"{DATA}.train_max_samples": Refused("set limit of the taskset."),
    f"{DATA}.val_max_samples": Refused("set limit of the evaluation set."),
    **{f"{DATA}.{name}": Refused(_CURATED) for name in (
        "return_raw_chat", "return_raw_input_ids", "return_full_prompt", "dataloader_num_workers", "tokenizer",
        "filter_overlong_prompts_workers", "use_shm", "trust_remote_code")},
    **{f"{DATA}.{name}": Refused(_OWN_READER) for name in ("custom_cls", "sampler", "datagen")},
    f"{DATA}.validation_shuffle": Refused(_WHOLE_EVALUATION),
    f"{DATA}.reward_fn_key": Refused("one reward function for each taskset: default_reward_fn_type."),
    **{f"{DATA}.{name}": Refused("means nothing without data.train_files.")
       for name in ("prompt_key", "response_key", "shuffle", "seed")},
    f"{DATA}.image_key": Refused("images and videos are not there yet: a task is text."),
    f"{DATA}.video_key": Refused("images and videos are not there yet: a task is text."),
    "algorithm.filter_groups": Refused("fresh tasks are drawn for groups that all score alike, by rounds: "
                                       "algorithm.max_resample_rounds.", (("enable", False),)),
    "algorithm.kl_penalty": Refused(_OFF_KL_PENALTY),
    "algorithm.kl_ctrl": Refused(_OFF_KL_PENALTY),
    "algorithm.rollout_correction": Refused("above its threshold a weight is cut to it, or with "
                                            "algorithm.rollout_correction.mode=mask is 0: there is no more to set."),
    "algorithm.rollout_is": Refused("set algorithm.rollout_correction: level, mode, threshold."),
    "algorithm.rollout_is_threshold": Refused("set algorithm.rollout_correction: level, mode, threshold."),
    "trainer.balance_batch": Refused(_BALANCED),
    "trainer.resume_from_path": Refused("a run goes on from its own newest checkpoint; to begin from another model, "
                                        "set model.model_path.", ("",)),
    "trainer.log_val_generations": Refused(_IN_SAMPLES),
    "trainer.rollout_data_dir": Refused(_ANSWERS_ONLY),
    "trainer.validation_data_dir": Refused(_IN_SAMPLES),
    "trainer.val_only": Refused("set mode=bench."),
    "trainer.default_hdfs_dir": Refused("checkpoints lie below checkpoint_root_dir."),
    "trainer.del_local_ckpt_after_load": Refused(OWN_LAYOUT),
    "trainer.remove_previous_ckpt_in_save": Refused("set trainer.max_checkpoints_to_keep."),
    "trainer.max_critic_ckpt_to_keep": Refused("a checkpoint holds actor and critic."),
    "trainer.device": Refused("GPUs are used where they are.", ("cuda",)),
    "trainer.ray_wait_register_center_timeout": Refused(_NO_RAY),
    "hydra": Refused(_OWN_DIRECTORY),
    "ray_init": Refused(_NO_RAY),
    "ray_kwargs": Refused(_NO_RAY),
    **verl_machinery.REFUSED,
}

KEYS = {**REFUSED, **RENAMED}


def find(key: str, keys: dict[str, Renamed | Refused] = KEYS) -> tuple[str, Renamed | Refused] | None:
    """The entry of a key: its own, or the nearest one above it. None for a key that the table does not have."""
    entry = "_target_" if key.endswith("._target_") and "_target_" in keys else key
    while entry and entry not in keys:
        entry = entry.rpartition(".")[0]
    found = keys.get(entry)
    if found is None or (isinstance(found, Renamed) and entry != key):
        return None
    return entry, found
