"""Keys that configurations of Trinity-RFT have and its guide does not: fields of its code, and of older releases.

Each with one sentence, as the keys of the guide have it in settings/guide_refused.py. Entries are found as there: the
key's own, or the nearest above it.
"""

from pipeline.settings import guide
from pipeline.settings.guide_keys import BUFFERS, TASKSETS, Refused, Renamed

_SET_THERE = "its own code sets it: leave it out."
_ONE_ENGINE = "vLLM has one engine, its V1: leave it out."
_ONE_MACHINE = "an engine has the GPUs of one machine, explorer.rollout_model.tensor_parallel_size of them."
_BY_AGENT = ("there an agent chose the operators; here they are named in data_processor.task_pipeline.operators, with "
             "their arguments.")
_NO_RAY = "there is no Ray: leave it out."
_IN_TURN = "demonstrations are taken in turn, for as long as the run lasts: leave it out."
_BY_ALGORITHM = "the algorithm says what the rows are: leave it out."
_COUNTED = "GPUs are counted from cluster, engines and trainer.ranks: leave it out."
_ALL_AT_ONCE = "all attempts of a step go to the engine together: leave it out."
_NO_REMOTE_CODE = "no code of a model is run: use a model that transformers and vLLM know."
_JUDGES = ("how a served model runs: an auxiliary model here scores by itself, and of how it runs says engine_num, "
           "tensor_parallel_size, dtype, max_model_len and max_token_len.")
_OWN = ("index", "is_eval", "batch_size", "total_steps", "ray_namespace", "tokenizer_path", "wrap_in_ray")

_LOSS = "algorithm.policy_loss_fn_args"

UNLISTED: dict[str, Refused | Renamed] = {
    f"{_LOSS}.loss_agg_mode": Renamed("algorithm.loss_agg_mode"),
    **{f"{_LOSS}.{name}": Refused("both kinds of rows follow algorithm.loss_agg_mode: leave it out.")
       for name in ("sft_loss_agg_mode", "grpo_loss_agg_mode", "use_token_level_loss_in_sft")},
    **{f"{_LOSS}.{name}": Refused("the batch itself tells how many rows of each kind it has: leave it out.")
       for name in ("use_dynamic_bsz", "repeat_times", "ppo_mini_batch_size", "ppo_micro_batch_size_per_gpu",
                    "ngpus_trainer", "train_batch_size_expert", "train_batch_size_usual", "read_batch_size_expert",
                    "read_batch_size_usual")},
    "group": Refused("a run is told by project and name: write the group into one of them."),
    "checkpoint_job_dir": Refused(_SET_THERE),
    "cod": Refused("arguments of research workflows of the original's, which are not here."),
    "data": Refused("a section of the first releases; what of it has a counterpart is read as such."),
    **{f"data.{name}": Refused(_BY_AGENT) for name in (
        "dj_process_desc", "dj_config_path", "agent_model_name", "agent_model_config", "clean_strategy",
        "min_size_ratio", "min_priority_score", "priority_weights", "data_dist")},
    "data.db_url": Refused("data are files, and experience is tables: leave it out."),
    "data_processor.data_processor_url": Refused("Data-Juicer runs inside the stage curate: leave it out."),
    **{f"data_processor.task_pipeline.{name}": Refused(_BY_AGENT) for name in (
        "dj_process_desc", "dj_config_path", "agent_model_name", "agent_model_config", "clean_strategy", "dynamic",
        "min_size_ratio", "min_priority_score", "data_dist")},
    "data_processor.task_pipeline.input_buffers": Refused("of inputs only the paths are read, as a list: "
                                                          "data_processor.task_pipeline.inputs."),
    "data_processor.task_pipeline.output_buffer": Refused("curated tasks are a stage's own file: leave it out."),
    **{f"model.{name}": Refused("trainer and engine both follow model.lora_configs: leave it out.")
       for name in ("fully_sharded_loras", "max_cpu_loras")},
    **{f"cluster.{name}": Refused(_COUNTED) for name in (
        "total_gpu_num", "rollout_gpu_num", "auxiliary_model_gpu_num", "explorer_gpu_num", "trainer_gpu_num",
        "trainer_node_num", "trainer_gpu_num_per_node")},
    "buffer.tokenizer_path": Refused("the tokenizer is the model's: leave it out."),
    "buffer.cache_dir": Refused(_SET_THERE),
    "buffer.explorer_output": Refused(_SET_THERE),
    **{f"{prefix}.{name}": Refused(_SET_THERE) for prefix in (*TASKSETS, *BUFFERS) for name in _OWN},
    **{f"{prefix}.total_epochs": Refused("set buffer.total_epochs, for all sets.") for prefix in TASKSETS},
    **{f"{prefix}.task_selector.{name}": guide.KEYS[f"{prefix}.data_selector.{name}"]
       for prefix in TASKSETS for name in ("feature_keys", "kwargs")},
    **{f"{prefix}.{name}": Refused(why) for prefix in BUFFERS for name, why in (
        ("total_epochs", _IN_TURN), ("schema_type", _BY_ALGORITHM), ("algorithm_type", _BY_ALGORITHM),
        ("data_selector", "demonstrations are taken in the order of their file: sort it, or leave it out."),
        ("max_retry_times", "belongs to data in a database; here they are files."),
        ("max_retry_interval", "belongs to data in a database; here they are files."))},
    **{f"{BUFFERS[1]}.{name}": Refused("belongs to a queue: demonstrations are files; leave it out.")
       for name in ("capacity", "max_read_timeout", "replay_buffer")},
    "explorer.max_inflight_batches": Refused("set synchronizer.sync_offset: how many steps the explorer may be ahead."),
    "explorer.use_ray": Refused(_NO_RAY),
    "explorer.backend": Refused("weights go through files: leave it out."),
    "explorer.max_pending_requests": Refused(_ALL_AT_ONCE),
    "explorer.max_waiting_steps": Refused(_ALL_AT_ONCE),
    "explorer.rollout_model.use_v1": Refused(_ONE_ENGINE),
    "explorer.rollout_model.trust_remote_code": Refused(_NO_REMOTE_CODE),
    **{f"explorer.rollout_model.{name}": Refused(_ONE_MACHINE) for name in ("gpu_per_engine", "nnodes", "node_rank")},
    **{f"explorer.rollout_model.{name}": Refused(_SET_THERE) for name in (
        "external_model_config", "bundle_indices", "engine_id", "ray_namespace", "ray_actor_name", "sync_method",
        "checkpoint_job_dir", "cuda_visible_devices", "enable_runtime_lora_updating")},
    "explorer.rollout_model.enable_return_routed_experts": guide.KEYS["algorithm.enable_router_replay"],
    "explorer.auxiliary_models.*": Refused(_JUDGES),
    "synchronizer.group_name": Refused(_SET_THERE),
    "synchronizer.explorer_world_size": Refused(_SET_THERE),
    "synchronizer.ray_namespace": Refused(_NO_RAY),
    "trainer.trust_remote_code": Refused(_NO_REMOTE_CODE),
    "trainer.get_exp_strategy": Refused("set priority_fn of buffer.trainer_input.experience_buffer.replay_buffer."),
    "monitor.cache_dir": Refused("a monitor's files are in the run's own directory: leave it out."),
    "monitor.cache_root_dir": Refused("a monitor's files are in the run's own directory: leave it out."),
}


def find(key: str) -> tuple[str, Refused | Renamed] | None:
    """The entry of a key that the guide does not have; None for one that is not here either."""
    entry = guide.general(key)
    while entry not in UNLISTED:
        entry = entry.rpartition(".")[0]
        if not entry:
            return None
    return entry, UNLISTED[entry]
