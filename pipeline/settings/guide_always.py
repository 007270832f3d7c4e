"""Trinity-RFT guide keys with which there is nothing to choose here: one value holds, is accepted and has no effect."""

from ouroboros.pipeline.settings.guide_keys import BUFFERS, OWN_NAME, TASKSETS, Always

_LOGPROBS = Always((0,), "the log-prob of every sampled token is kept, and of no other.")
_READ_ONCE = Always((int,), "data are files, which are there or not: no read is tried again.")
_ENDPOINT = ("a workflow with a parameter `endpoint` gets an interface of OpenAI and Anthropic at a free port, with a "
             "token of its own (docs/agents.md).")
_INSIDE = "Data-Juicer runs inside the stages that use it, curate and those that explore, without a server."
_LORA = "trainer and engine both follow model.lora_configs."
_NOT_ANSWERED = Always((None, ""), "demonstrations and pairs are trained on as they are: nothing answers them.")

ALWAYS: dict[str, Always] = {
    "algorithm.optimizer.optimizer_type": Always(("adam", "adamw"), "the optimizer is AdamW."),
    "model.logprobs": _LOGPROBS,
    "model.lora_configs.*.base_model_name": Always((None,), "an adapter is for the model that its stage begins with."),
    **{f"{prefix}.enable_progress_bar": Always((False,), "a stage shows its steps, and reading has no bar of its own.")
       for prefix in (*TASKSETS, *BUFFERS)},
    **{f"{prefix}.{name}": fate for prefix in TASKSETS for name, fate in (
        ("rollout_args.logprobs", _LOGPROBS), ("max_retry_times", _READ_ONCE), ("max_retry_interval", _READ_ONCE),
        ("format.enable_concatenated_multi_turn", Always((False,), (
            "a task is answered, not trained on; of demonstrations: "
            "buffer.trainer_input.experience_buffer.format.enable_concatenated_multi_turn."))))},
    **{f"{prefix}.format.{name}": _NOT_ANSWERED for prefix in BUFFERS
       for name in ("reply_prefix", "workflow_key", "reward_fn_key")},
    "buffer.max_retry_times": _READ_ONCE,
    "buffer.max_retry_interval": _READ_ONCE,
    "buffer.trainer_input.auxiliary_buffers.*.name": Always((OWN_NAME, None), "the key above it is the name."),
    "explorer.concurrent_mode": Always(("asynchronous",), (
        "the attempts at a task are in progress side by side; explorer.runner_concurrency bounds their number.")),
    "explorer.over_rollout.return_partial_tasks": Always((False,), (
        "a group is trained on as a whole, because its rollouts are compared.")),
    "explorer.runner_state_report_interval": Always((0,), "a stage shows its progress by itself."),
    "explorer.rollout_model.pipeline_parallel_size": Always((1,), (
        "an engine splits its model by explorer.rollout_model.tensor_parallel_size alone: raise that where a model "
        "needs more GPUs.")),
    "explorer.rollout_model.ignore_eos": Always((False,), "a response ends with its end token."),
    "explorer.rollout_model.enable_log_requests": Always((True,), "every request is a row of a table: ask `ouro sql`."),
    "explorer.rollout_model.logprobs": _LOGPROBS,
    "explorer.rollout_model.enable_lora": Always((None,), _LORA),
    "explorer.rollout_model.lora_modules": Always((None, []), _LORA),
    "explorer.rollout_model.lora_kwargs": Always((None, {}), _LORA),
    "explorer.rollout_model.fully_sharded_loras": Always((False,), _LORA),
    "explorer.rollout_model.max_cpu_loras": Always((None,), _LORA),
    "explorer.rollout_model.enable_auto_tool_choice": Always((True,), (
        "where a client of the endpoint sends tools, their calls are read from the reply, by "
        "explorer.tool_call_parser.")),
    "explorer.rollout_model.reasoning_parser": Always((None, ""), (
        "thoughts stay in the text of a reply: leave it out; model.enable_thinking goes to the chat template.")),
    "explorer.rollout_model.enable_openai_api": Always((True, False), _ENDPOINT),
    "explorer.rollout_model.base_port": Always((None, int), _ENDPOINT),
    "explorer.rollout_model.api_key": Always((None, "", "EMPTY", "none"), _ENDPOINT),
    "explorer.rollout_model.enable_history": Always((True,), (
        "every response is a row of experience, with its tokens and log-probs.")),
    "synchronizer.wait_for_checkpoint": Always((True,), "each side waits for what it needs."),
    "trainer.save_strategy": Always(("unrestricted",), "every rank writes its part at once; a checkpoint appears "
                                                       "whole."),
    "trainer.save_hf_checkpoint": Always(("always", "last"), "every checkpoint is a Hugging Face model."),
    "trainer.use_remove_padding": Always((True,), "sequences are packed without padding."),
    "trainer.balance_batch": Always((True,), "every rank gets as many micro-batches as the others."),
    "trainer.enable_preview": Always((True,), "every response is in the table experience, which `ouro sql` shows."),
    "trainer.fix_actor_microbatch_loss_scale": Always((True,), (
        "token weights are fixed over the whole train batch, so that the split changes nothing.")),
    "monitor.enable_ray_timeline": Always((True, False), (
        "`ouro timeline RUN` makes a trace of any run, from its tables.")),
    "monitor.detailed_stats": Always((True,), "the table scores has every number of an evaluation with its interval."),
    "service": Always((None, {}), _INSIDE),
    "service.data_juicer.auto_start": Always((True,), _INSIDE),
    "service.data_juicer.server_url": Always((None,), _INSIDE),
    "service.data_juicer.port": Always((None,), _INSIDE),
    "data_processor.task_pipeline.output": Always((None,), (
        "curated tasks are a stage's own file, made again only when something changed.")),
    "data_processor.experience_pipeline.input_save_path": Always((None,), (
        "the rows as they were are the table experience, in the stage's directory.")),
    "data_processor.experience_pipeline.output": Always((None,), (
        "train batches read what the operators leave by themselves.")),
    "log.group_by_node": Always((False,), "every process of a stage has its log in the stage's directory."),
    "log.save_dir": Always((None,), "every process of a stage has its log in the stage's directory."),
}
