"""Keys of veRL's machinery: profilers, transports, ways to place, split and quantize models. Few have a counterpart.

After the configuration files that veRL itself ships (0.3 to 0.9).
"""

from pipeline.settings.guide_keys import Refused, Renamed

ACTOR, REFERENCE, ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout"))
MODELS = ("actor_rollout_ref.model", "critic.model")
CRITIC = "trainer.critic.optimizer"
DECAY = {"constant": "constant", "cosine": "cosine", "linear": "linear", "WSD": "wsd"}

SECONDS = "every step's seconds are in the table steps."
PUBLISHED = "the engine loads the weights that the trainer publishes."
OWN_CLASS = "names veRL's own class of the section."
FILES = "data go from stage to stage as files."
AS_TRAINED = "the engine runs the weights as they are trained."
WORKERS = "how many processes score responses is not to be set."
ENTROPY = "always measured."
POOLS = "who has which GPUs: trainer.ranks, explorer.rollout_model.engine_num and cluster.gpu_per_node."
BY_ZERO = "DeepSpeed ZeRO splits the model: trainer.zero_stage."
MEGATRON_OWN = "belongs to Megatron, which is not here: DeepSpeed ZeRO splits the model."
TEXT_ALONE = "images, videos and audio are not there yet: a task is text."
ADAM = "AdamW is the optimizer."
IDLE = (SECONDS, PUBLISHED, OWN_CLASS, FILES, WORKERS, ENTROPY, POOLS, MEGATRON_OWN)

_BY_TENSOR = "an engine is split by explorer.rollout_model.tensor_parallel_size alone."
_NO_MORE_HEADS = "there is no multi-token prediction."
_ENGINE = "arguments of vllm.LLM go below explorer.rollout_model.extra_engine_args."
_ONE_SETTING = "one setting holds for actor and critic here, and the actor's was taken."
_ADAPTERS = "the critic trains all of its own parameters; model.lora_configs is the policy's."
_TEACHER = "a teacher is model.teacher_model_path, and the algorithm on_policy_distill."
_SANDBOX = "a reward that runs code is a function of your own: default_reward_fn_type=package.module:function."
_DIALOGUE = ("a dialogue is a workflow of your own: "
             "buffer.explorer_input.default_workflow_type=package.module:function.")

RENAMED = {
    **{f"{ACTOR}.{engine}.{name}_offload": Renamed(f"trainer.offload_{name}")
       for engine in ("megatron", "torchtitan", "veomni") for name in ("param", "optimizer")},
    f"{ACTOR}.optim.override_optimizer_config.optimizer_cpu_offload": Renamed("trainer.offload_optimizer"),
    f"{ACTOR}.optim.lr_decay_style": Renamed("algorithm.optimizer.lr_scheduler_type", DECAY),
    f"{ACTOR}.optim.eps": Renamed("algorithm.optimizer.eps"),
    f"{ACTOR}.tau_pos": Renamed("algorithm.policy_loss_fn_args.tau_pos"),
    f"{ACTOR}.tau_neg": Renamed("algorithm.policy_loss_fn_args.tau_neg"),
    **{f"critic.optim.{name}": Renamed(f"{CRITIC}.{name}") for name in ("betas", "eps", "min_lr_ratio")},
    **{f"critic.optim.{name}": Renamed(f"{CRITIC}.lr_scheduler_type", DECAY)
       for name in ("lr_scheduler_type", "lr_decay_style")},
    **{f"actor_rollout_ref.model.lora.{theirs}": Renamed(f"model.lora_configs.*.{ours}") for theirs, ours in (
        ("rank", "lora_rank"), ("alpha", "lora_alpha"), ("dtype", "lora_dtype"), ("adapter_path", "path"))},
    "data.apply_chat_template_kwargs.enable_thinking": Renamed("model.enable_thinking"),
}

REFUSED = {
    "_target_": Refused(OWN_CLASS),
    **dict.fromkeys((
        "global_profiler", "profile", "actor_rollout_ref.profiler", f"{ROLLOUT}.profiler", "reward_model.profiler",
        f"{ROLLOUT}.prometheus", *(f"trainer.{name}" for name in (
            "profile_steps", "profile_interval", "profile_continuous_steps", "npu_profile",
            "controller_nsight_options", "worker_nsight_options")),
        *(f"{part}.profile_{name}" for part in (ACTOR, REFERENCE, ROLLOUT, "critic", "reward_model")
          for name in ("ranks", "ranks_all", "discrete"))), Refused(SECONDS)),
    "transfer_queue": Refused(FILES),
    **{f"{ROLLOUT}.{name}": Refused(PUBLISHED) for name in (
        "checkpoint_engine", "update_weights_bucket_megabytes", "layer_name_map")},
    **{f"{ROLLOUT}.{name}": Refused(AS_TRAINED) for name in ("quantization", "quantization_config_file", "qat")},
    **{f"{ROLLOUT}.{name}": Refused(_BY_TENSOR, (1,)) for name in (
        "data_parallel_size", "expert_parallel_size", "pipeline_model_parallel_size")},
    **{f"{ROLLOUT}.{name}": Refused(_ENGINE) for name in (
        "cudagraph_capture_sizes", "logprobs_mode", "scheduling_policy", "skip_tokenizer_init", "max_batch_size",
        "limit_images")},
    f"{ROLLOUT}.over_sample_rate": Refused("an explorer step waits for all of its rollouts.", (0,)),
    **{f"{ROLLOUT}.{name}": Refused("rollouts are made, or read: mode=train.") for name in (
        "skip_rollout", "skip_dump_dir", "skip_use_default_dir", "skip")},
    f"{ROLLOUT}.trace": Refused("every response is in the table experience, and `ouro sql` shows it."),
    f"{ROLLOUT}.disaggregation": Refused("an engine prefills and decodes.", (("enabled", False),)),
    f"{ROLLOUT}.mtp": Refused(_NO_MORE_HEADS, (("enable", False),)),
    f"{ROLLOUT}.enable_rollout_routing_replay": Refused("experts are routed anew by the trainer."),
    f"{ROLLOUT}.use_fire_sampling": Refused("every token is sampled at model.temperature."),
    **{f"{model}.{name}": Refused(why, idle) for model in MODELS for name, why, idle in (
        ("use_rmpad", "always so: sequences are packed without padding.", ()),
        ("hf_config_path", "the configuration is read from the model's directory.", ()),
        ("enable_activation_offloading", "not there yet: trainer.enable_gradient_checkpointing saves the same memory.",
         ()), ("tiled_mlp", "layers are not computed in tiles.", (("enabled", False),)),
        ("mtp", _NO_MORE_HEADS, (("enable", False),)))},
    "actor_rollout_ref.model.lora": Refused("an adapter has a rank, an alpha, and the modules that it is on."),
    "actor_rollout_ref.model.lora.target_modules": Refused(
        "Megatron names its layers otherwise; needed the names of the model's own: model.lora_configs."),
    "critic.model.lora": Refused(_ADAPTERS, (("rank", 0),)),
    **{f"{part}.optim.{name}": Refused(ADAM, ("AdamW", "adam", "torch.optim")) for part in (ACTOR, "critic")
       for name in ("optimizer", "optimizer_impl")},
    **{f"{part}.optim.{name}": Refused(why, idle) for part in (ACTOR, "critic") for name, why, idle in (
        ("override_optimizer_config", MEGATRON_OWN, ()), ("use_checkpoint_opt_param_scheduler", MEGATRON_OWN, ()),
        ("lr_wsd_decay_style", MEGATRON_OWN, ()), ("lr_wsd_decay_steps", MEGATRON_OWN, ()),
        ("min_lr", "a rate of its own there; here it is a share of lr: set min_lr_ratio of the optimizer.", (0,)),
        ("lr_warmup_init", "a warm-up begins at 0.", (0,)), ("weight_decay_incr_style", "weight decay is constant.",
                                                            ("constant",)),
        ("lr_decay_steps", "set algorithm.optimizer.lr_decay_steps, in optimizer steps.", ()),
        ("zero_indexed_step", "the first optimizer step has the first rate of the schedule.", ()),
        ("use_fused_kernels", "kernels are chosen by trainer.attention.", ()))},
    **{f"{part}.{engine}": Refused(BY_ZERO) for part in (ACTOR, REFERENCE, "critic")
       for engine in ("megatron", "torchtitan", "veomni")},
    **{f"{ACTOR}.{name}": Refused(why, idle) for name, why, idle in (
        ("use_fused_kernels", "kernels are chosen by trainer.attention.", ()),
        ("use_remove_padding", "always so: sequences are packed without padding.", ()),
        ("freeze_vision_tower", TEXT_ALONE, ()), ("calculate_entropy", ENTROPY, ()),
        ("rollout_n", "said by algorithm.repeat_times.", ()), ("qat", AS_TRAINED, (("enable", False),)),
        ("use_prefix_grouper", "the prompt of a group is computed with each response.", ()),
        ("calculate_sum_pi_squared", "not measured.", ()),
        ("loss_scale_factor", "algorithm.loss_agg_mode=seq-mean-token-sum-norm divides by "
                              "model.max_response_tokens.", ()),
        ("router_replay", "experts are routed anew by the trainer.", (("mode", "disabled"),)),
        ("load_weight", "always so.", (True,)))},
    **{f"critic.{name}": Refused(why, idle) for name, why, idle in (
        ("fsdp", _ONE_SETTING, ()), ("optim.clip_grad", _ONE_SETTING, ()), ("optim.num_cycles", _ONE_SETTING, ()),
        ("optim.lr_warmup_steps", "set trainer.critic.optimizer.lr_warmup_steps, in optimizer steps.", (-1,)),
        ("loss_agg_mode", "the critic's loss is a mean over tokens.", ("token-mean",)),
        ("rollout_n", "said by algorithm.repeat_times.", ()), ("load_weight", "always so.", (True,)),
        ("data_loader_seed", "one optimizer step takes a whole train batch, so its order says nothing.", ()),
        ("kl_ctrl", "a critic has no KL term.", ()),
        ("model.custom_chat_template", "one template holds for both: model.custom_chat_template.", ()))},
    "algorithm.use_pf_ppo": Refused("rollouts are not drawn again by their scores."),
    "algorithm.pf_ppo": Refused("means nothing without algorithm.use_pf_ppo=True."),
    "trainer.use_legacy_worker_impl": Refused("chooses between veRL's own workers.",
                                              ("auto", "disable", "enable")),
    "trainer.esi_redundant_time": Refused("a run goes on from its newest checkpoint wherever it ends."),
    "trainer.val_generations_to_log_to_wandb": Refused("every response of an evaluation is in the table samples."),
    "trainer.use_v1": Refused("chooses between veRL's own trainers.", (True,)),
    "trainer.v1": Refused("set synchronizer.sync_interval and sync_offset.", (("trainer_mode", "sync"),)),
    "trainer.checkpoint_callback_class": Refused("a checkpoint is a stage's own directory, proved by its manifest."),
    "skip": Refused("rollouts are made, or read: mode=train."),
    "async_training": Refused("hand-overs are synchronizer.sync_interval and sync_offset, and no more."),
    "resource_pool_specs": Refused(POOLS),
    **{f"{part}.resource_pool_id": Refused(POOLS) for part in (ACTOR, REFERENCE, ROLLOUT, "critic", "reward_model")},
    **{f"{ROLLOUT}.{name}": Refused(POOLS) for name in ("nnodes", "n_gpus_per_node")},
    **{f"data.{name}": Refused(TEXT_ALONE) for name in (
        "return_multi_modal_inputs", "image_patch_size", "mm_processor_kwargs", "audio_key")},
    **{f"data.{name}": Refused(_DIALOGUE) for name in ("tool_config_path", "function_tool_path")},
    "data.apply_chat_template_kwargs": Refused("the chat template says how a task reads: model.custom_chat_template, "
                                               "or of thinking model.enable_thinking."),
    **dict.fromkeys(("reward.num_workers", "reward_model.num_workers", "reward_model.launch_reward_fn_async",
                     "reward_model.use_reward_loop"), Refused(WORKERS)),
    **dict.fromkeys(("sandbox_fusion", "reward.sandbox_fusion", "reward_model.sandbox_fusion"),
                    Refused(_SANDBOX, (("url", None),))),
    "reward.reward_model": Refused("of a scoring model there is to say what stands below explorer.auxiliary_models: "
                                   "its path, copies, dtype, and the tokens of a batch.", (("enable", False),)),
    "distillation": Refused(_TEACHER, (("enabled", False),)),
}
