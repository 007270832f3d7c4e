"""Trinity-RFT guide keys without a meaning here, each with one sentence on the alternative."""

from pipeline.settings.guide_keys import BUFFERS, TASKSETS, Refused

_NO_ACTORS = "there are no actors whose names must differ; project and name identify a run."
_NO_RAY = "there is no Ray: Snakemake starts the stages, here or by SLURM (`ouro run --profile slurm`)."
_TIMING = "every step's seconds, part by part, are in the table steps: ouro sql 'select * from steps'."
_ALL_AT_ONCE = ("explorer.runner_concurrency says how many attempts are in progress at once (null: all), and "
                "explorer.rollout_model.max_num_seqs how many responses an engine decodes at once.")
_BOUNDED = ("a response is bounded by model.max_response_tokens, the code of a workflow by explorer.max_timeout, and "
            "the wait of one side for the other by synchronizer.sync_timeout.")
_NO_SERVER = ("a workflow with a parameter `endpoint` gets the address and the token of an interface of OpenAI and "
              "Anthropic that its stage starts (docs/agents.md); `ouro serve` serves a trained model.")
_TINKER = ("models are trained here, by DeepSpeed ZeRO; leave model.tinker out. What it trains is a LoRA adapter: for "
           "that set model.lora_configs.")
_EXTERNAL = ("a server gives no log-probs to train on: set model.model_path. With mode=bench "
             "explorer.rollout_model.engine_type=openai evaluates it (external.base_url, model_name, api_key_env), and "
             "judge_reward asks one for judgements.")
_LORA = "trainer and engine both follow model.lora_configs: leave it out."
_ROPE = "trainer and engine follow model.rope_scaling and model.rope_theta: set those."
_SERVICE = "Data-Juicer runs inside the stage curate: leave the section service out."
_MEGATRON = "DeepSpeed ZeRO splits the model: trainer.zero_stage=3."
_PER_ROW = "not there yet: give the rows of one kind a taskset of their own, which names it."
_MULTIMODAL = "images and videos are not there yet: a task is text."
_CALLS = ("always so: where a client of the endpoint sends tools, their calls are read from the reply, by "
          "explorer.tool_call_parser.")
_THOUGHTS = "thoughts stay in the text of a reply: leave it out; model.enable_thinking goes to the chat template."
_SQL_ONLY = "belongs to data in a database; here a taskset is files."
_OF_A_JUDGE = ("belongs to a judge, which is a server here: default_reward_fn_type=judge_reward with judge_url and "
               "judge_model. An auxiliary model here scores what was answered.")
_ONE_INTERVAL = "both sides follow one schedule: synchronizer.sync_interval."
_EXACT = "always so: token weights are fixed over the whole train batch, so the split changes nothing."

REFUSED: dict[str, Refused] = {
    "ray_namespace": Refused(_NO_RAY),
    "algorithm.enable_router_replay": Refused("not there yet: leave it out; the trainer routes each token anew."),
    "algorithm.optimizer.optimizer_type": Refused("the optimizer is AdamW: leave it out.", ("adam",)),
    "model.logprobs": Refused("the log-prob of every sampled token is always kept: leave it out."),
    "model.lora_configs.*.base_model_name": Refused("an adapter is for the model that its stage begins with: leave it "
                                                    "out."),
    "model.tinker": Refused(_TINKER, (("enable", False),)),
    "model.external_model": Refused(_EXTERNAL, (("enable", False),)),
    "cluster.ray_address": Refused(_NO_RAY),
    **{f"{prefix}.{name}": Refused(why) for prefix in TASKSETS for name, why in (
        ("rollout_args.logprobs", "the log-prob of every sampled token is always kept: leave it out."),
        ("rollout_args.max_tokens", "set model.max_response_tokens, one length for all sets."),
        ("rollout_args.n", "set algorithm.repeat_times, or repeat_times of an eval set."),
        ("data_selector.feature_keys", "no selector reads features yet: sort the file, and write sequential."),
        ("data_selector.kwargs", "the selectors here take no more than a seed: leave it out."),
        ("max_retry_times", _SQL_ONLY), ("max_retry_interval", _SQL_ONLY),
        ("format.enable_concatenated_multi_turn", "set it for demonstrations, under "
                                                  "buffer.trainer_input.experience_buffer.format."))},
    **{f"{prefix}.enable_progress_bar": Refused("a stage shows its progress by itself: leave it out.")
       for prefix in (*TASKSETS, *BUFFERS)},
    **{f"{prefix}.format.{name}": Refused(why) for prefix in (*TASKSETS, *BUFFERS) for name, why in (
        ("reply_prefix", "not there yet: end the prompt with it."),)},
    **{f"{prefix}.format.{name}": Refused(why, loses=loses) for prefix in (*TASKSETS, *BUFFERS)
       for name, why, loses in (
        ("image_key", _MULTIMODAL, "images"), ("video_key", _MULTIMODAL, "images"),
        ("workflow_key", _PER_ROW, "multi-turn"), ("reward_fn_key", _PER_ROW, "reward"))},
    "buffer.trainer_input.experience_buffer.max_read_timeout": Refused(
        "there the wait after which an incomplete batch is trained on; here a batch is complete, and a side that waits "
        "longer than synchronizer.sync_timeout for the other ends the stage."),
    "buffer.trainer_input.experience_buffer.capacity": Refused("tables have no bound but the disk: leave it out."),
    "buffer.trainer_input.auxiliary_buffers.*.name": Refused("the key above it is the name: leave it out."),
    "buffer.trainer_input.sft_warmup_dataset": Refused("write a stage of its own before this one: stages, with "
                                                       "algorithm_type sft and this path in experience_buffer."),
    "buffer.trainer_input.sft_warmup_steps": Refused("write a stage of its own before this one: stages, with "
                                                     "algorithm_type sft and total_steps.", (0,), "demonstrations"),
    "buffer.max_retry_times": Refused(_SQL_ONLY),
    "buffer.max_retry_interval": Refused(_SQL_ONLY),
    "explorer.name": Refused(_NO_ACTORS),
    "explorer.runner_num": Refused(_ALL_AT_ONCE),
    "explorer.runner_per_model": Refused(_ALL_AT_ONCE),
    "explorer.runner_prepare_concurrency": Refused(_ALL_AT_ONCE),
    "explorer.runner_prepare_max_retries": Refused(_ALL_AT_ONCE),
    "explorer.concurrent_mode": Refused(_ALL_AT_ONCE),
    "explorer.max_repeat_times_per_runner": Refused(_ALL_AT_ONCE),
    "explorer.dynamic_timeout": Refused(_BOUNDED, (("enable", False),)),
    "explorer.over_rollout.return_partial_tasks": Refused("a group is trained on as a whole, because its rollouts are "
                                                          "compared: leave it out.", (False,)),
    "explorer.runner_state_report_interval": Refused("a stage shows its progress by itself: leave it out.", (0,)),
    **{f"explorer.{name}": Refused(_NO_SERVER) for name in (
        "proxy_port", "listen_address", "service_status_check_interval", "min_running_model_num", "db_url")},
    "explorer.rollout_model.name": Refused(_NO_ACTORS),
    "explorer.rollout_model.logprobs": Refused("the log-prob of every sampled token is always kept: leave it out."),
    "explorer.rollout_model.data_parallel_size": Refused("one engine is one copy of the model: leave it out.", (1,)),
    "explorer.rollout_model.pipeline_parallel_size": Refused(
        "an engine's GPUs are counted by explorer.rollout_model.tensor_parallel_size: set that.", (1,)),
    "explorer.rollout_model.ignore_eos": Refused("a response ends with its end token: leave it out."),
    "explorer.rollout_model.weight_sync_buffer_size": Refused("weights go through files: leave it out."),
    "explorer.rollout_model.enable_multimodal": Refused(_MULTIMODAL, loses="images"),
    "explorer.rollout_model.enable_log_requests": Refused("every request is a row of experience: ask by `ouro sql`."),
    "explorer.rollout_model.rope_scaling": Refused(_ROPE),
    "explorer.rollout_model.rope_theta": Refused(_ROPE),
    **{f"explorer.rollout_model.{name}": Refused(_LORA) for name in (
        "enable_lora", "lora_modules", "lora_kwargs", "fully_sharded_loras", "max_cpu_loras")},
    "explorer.rollout_model.enable_auto_tool_choice": Refused(_CALLS),
    "explorer.rollout_model.reasoning_parser": Refused(_THOUGHTS),
    "explorer.rollout_model.enable_history": Refused(
        "every response is a row of experience, with its tokens and log-probs: leave it out."),
    "explorer.rollout_model.enable_openai_api": Refused(_NO_SERVER),
    "explorer.rollout_model.base_port": Refused(_NO_SERVER),
    "explorer.rollout_model.api_key": Refused(_NO_SERVER),
    **{f"explorer.auxiliary_models.*.{name}": Refused(_OF_A_JUDGE) for name in (
        "enable_thinking", "max_prompt_tokens", "max_response_tokens")},
    "synchronizer.explorer_sync_interval": Refused(_ONE_INTERVAL),
    "synchronizer.trainer_sync_interval": Refused(_ONE_INTERVAL),
    "synchronizer.max_inflight_batches": Refused("set synchronizer.sync_offset: how many steps the explorer may be "
                                                 "ahead."),
    "synchronizer.wait_for_checkpoint": Refused("each side waits for what the schedule says it needs: leave it out."),
    "trainer.name": Refused(_NO_ACTORS),
    "trainer.trainer_type": Refused("DeepSpeed ZeRO trains (trainer.zero_stage): leave it out."),
    "trainer.save_strategy": Refused("each rank writes its part, and the checkpoint appears whole: leave it out."),
    "trainer.save_hf_checkpoint": Refused("every checkpoint is a Hugging Face model: leave it out."),
    "trainer.ulysses_sequence_parallel_size": Refused(
        "a sequence is not split over GPUs yet: lower trainer.max_token_len_per_gpu, and set "
        "trainer.enable_gradient_checkpointing.", (1,)),
    "trainer.use_remove_padding": Refused("always so: sequences are packed without padding; leave it out."),
    "trainer.balance_batch": Refused("always so: every rank gets as many micro-batches as the others; leave it out."),
    "trainer.grad_offload": Refused("set trainer.offload_optimizer, by which gradients leave the GPU too."),
    "trainer.offload_policy": Refused("set trainer.offload_optimizer, and with trainer.zero_stage=3 "
                                      "trainer.offload_param."),
    "trainer.megatron": Refused(_MEGATRON),
    "trainer.enable_preview": Refused("every response is in the table experience: leave it out; `ouro sql` shows "
                                      "them."),
    "trainer.fix_actor_microbatch_loss_scale": Refused(_EXACT),
    "trainer.trainer_config": Refused("settings of veRL's trainer: `ouro import` translates those that have a "
                                      "counterpart."),
    "trainer.trainer_config_path": Refused("settings of veRL's trainer: write them below trainer.trainer_config, and "
                                           "`ouro import` translates those that have a counterpart."),
    "monitor.enable_ray_timeline": Refused(_TIMING),
    "monitor.detailed_stats": Refused("the table scores has every number of an evaluation with its interval."),
    "service": Refused(_SERVICE),
    "data_processor.task_pipeline.output": Refused("curated tasks are a stage's own file, made anew only when "
                                                   "something changed: leave it out."),
    "data_processor.task_pipeline.priority_weights": Refused(
        "rows are not ordered by priority yet: sort the file, or filter with operators."),
    "data_processor.task_pipeline.top_k": Refused("set limit of the taskset.", (-1,)),
    "data_processor.experience_pipeline.input_save_path": Refused(
        "the rows as they were are the table experience, in the stage's directory: leave it out."),
    "data_processor.experience_pipeline.output": Refused(
        "train batches read what the operators leave by themselves: leave it out."),
    "log.group_by_node": Refused("every process of a stage has its log in the stage's directory: leave it out."),
    "log.save_dir": Refused("every process of a stage has its log in the stage's directory: leave it out."),
}

# guide keys below a key that is refused as a whole
BELOW = {
    "model.tinker": "enable rank seed train_mlp train_attn train_unembed base_url",
    "model.external_model": "enable model_name base_url_env api_key_env",
    "explorer.dynamic_timeout": "enable ratio warmup_min_steps",
    "service": "data_juicer.server_url data_juicer.auto_start data_juicer.port",
}
REFUSED |= {f"{key}.{name}": Refused(REFUSED[key].why) for key, names in BELOW.items() for name in names.split()}
