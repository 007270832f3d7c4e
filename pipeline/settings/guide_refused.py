"""Trinity-RFT guide keys without a meaning here, each with one sentence on the alternative."""

from ouroboros.pipeline.settings.guide_keys import BUFFERS, TASKSETS, Refused, Translated

_NO_ACTORS = "there are no actors whose names must differ; project and name identify a run."
_NO_RAY = "there is no Ray: Snakemake starts the stages, here or by SLURM (`ouro run --profile slurm`)."
_ALL_AT_ONCE = ("explorer.runner_concurrency says how many attempts are in progress at once (null: all), and "
                "explorer.rollout_model.max_num_seqs how many responses an engine decodes at once.")
_NO_SERVER = ("a workflow with a parameter `endpoint` gets the address and the token of an interface of OpenAI and "
              "Anthropic that its stage starts (docs/agents.md); `ouro serve` serves a trained model.")
_TINKER = "models are trained here, by DeepSpeed: what the service trains is an adapter of model.lora_configs."
_EXTERNAL = ("a server gives no log-probs to train on: set model.model_path. With mode=bench or mode=explore "
             "explorer.rollout_model.engine_type=openai asks it (external.base_url, model_name, api_key_env); so do "
             "`ouro serve` and judge_reward.")
_OF_VERL = "settings of veRL's trainer: `ouro import` translates those that have a counterpart."
_WARMUP = "write a stage of its own before this one: stages, with algorithm_type sft and these rows."
_MEGATRON = "DeepSpeed ZeRO splits the model: trainer.zero_stage=3."
_MULTIMODAL = "images and videos are not there yet: a task is text."

REFUSED: dict[str, Refused] = {
    "ray_namespace": Refused(_NO_RAY),
    "model.tinker.seed": Refused("the seed of the service; here every draw follows the seed of the run."),
    "model.tinker.train_unembed": Refused("an adapter here has no part for the output head."),
    "model.tinker.base_url": Refused(_TINKER),
    "cluster.ray_address": Refused(_NO_RAY),
    **{f"{prefix}.format.{name}": Refused(_MULTIMODAL, (None,), "images") for prefix in (*TASKSETS, *BUFFERS)
       for name in ("image_key", "video_key")},
    "buffer.trainer_input.experience_buffer.max_read_timeout": Refused(
        "there the wait after which an incomplete batch is trained on; here a batch is complete, and a side that waits "
        "longer than synchronizer.sync_timeout for the other ends the stage."),
    "buffer.trainer_input.experience_buffer.capacity": Refused("tables have no bound but the disk: leave it out."),
    "data_processor.experience_pipeline.inputs": Refused(
        "what a stage with mode=explore of another run wrote is trained on in a stage of its own, with mode=train and "
        "its directory as buffer.trainer_input.experience_buffer.path; a step of rft holds its own rows and those that "
        "it replays.", ({},)),
    "explorer.name": Refused(_NO_ACTORS),
    "explorer.runner_num": Refused(_ALL_AT_ONCE),
    "explorer.runner_per_model": Refused(_ALL_AT_ONCE),
    "explorer.runner_prepare_concurrency": Refused(_ALL_AT_ONCE),
    "explorer.runner_prepare_max_retries": Refused(_ALL_AT_ONCE),
    "explorer.max_repeat_times_per_runner": Refused(_ALL_AT_ONCE),
    **{f"explorer.{name}": Refused(_NO_SERVER) for name in (
        "proxy_port", "listen_address", "service_status_check_interval", "min_running_model_num", "db_url")},
    "explorer.rollout_model.name": Refused(_NO_ACTORS),
    "explorer.rollout_model.weight_sync_buffer_size": Refused("weights go through files: leave it out."),
    "explorer.rollout_model.enable_multimodal": Refused(_MULTIMODAL, loses="images"),
    "synchronizer.max_inflight_batches": Refused("of sync_style=fully_async, which is not here; with "
                                                 "trainer_driven synchronizer.max_staleness is the bound."),
    "trainer.name": Refused(_NO_ACTORS),
    "trainer.trainer_type": Refused("DeepSpeed ZeRO trains (trainer.zero_stage): leave it out."),
    "trainer.megatron": Refused(_MEGATRON),
}

TRANSLATED: dict[str, Translated] = {
    **{f"model.tinker{name}": Translated(_TINKER, (("enable", False),) if not name else (),
                                         to=f"model.lora_configs{to}", note=note) for name, to, note in (
        ("", "", "an adapter"), (".enable", ".*.lora_rank", "of model.tinker.rank"), (".rank", ".*.lora_rank", ""),
        (".train_mlp", ".*.exclude_modules", "false: those of the MLP"),
        (".train_attn", ".*.exclude_modules", "false: those of the attention"))},
    **{f"model.external_model{name}": Translated(_EXTERNAL, (("enable", False),) if not name else (),
                                                 to=f"explorer.rollout_model.{to}", note=note) for name, to, note in (
        ("", "external", ""), (".enable", "engine_type", "true: openai"), (".model_name", "external.model_name", ""),
        (".base_url_env", "external.base_url", "as ${oc.env:VARIABLE}"),
        (".api_key_env", "external.api_key_env", ""))},
    "trainer.trainer_config": Translated(_OF_VERL, to="trainer", note="each key of veRL by its row in the next table"),
    "trainer.trainer_config_path": Translated(_OF_VERL, to="trainer", note="each key of the file by its row in the "
                                                                           "next table"),
    "buffer.trainer_input.sft_warmup_dataset": Translated(_WARMUP, to="stages", note=(
        "a stage before the others, with algorithm_type sft and these rows as its experience_buffer")),
    "buffer.trainer_input.sft_warmup_steps": Translated(_WARMUP, (0,), "demonstrations", "stages", (
        "buffer.total_steps of that stage")),
}
