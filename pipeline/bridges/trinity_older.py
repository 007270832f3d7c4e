"""Keys of older releases of Trinity-RFT (0.1 and 0.2), read as the keys that took their place.

A key is dotted, without its stage; what stands below one goes along. Those that nothing took the place of are in
pipeline/bridges/trinity_unlisted.py.
"""

from pipeline.bridges.source import Given
from pipeline.bridges.translation import Path, Translation
from pipeline.bridges.trinity_inputs import INPUTS

TASKSET, EVAL_SET = "buffer.explorer_input.taskset", "buffer.explorer_input.eval_tasksets.0"
BUFFER = "buffer.trainer_input.experience_buffer"
INPUT_BUFFERS = ("data_processor", "task_pipeline", "input_buffers")
MIXED = ("mix", "mix_chord")
ENGINE = ("engine_type", "engine_num", "tensor_parallel_size", "enable_prefix_caching", "enable_chunked_prefill",
          "enforce_eager", "dtype", "seed", "gpu_memory_utilization", "temperature", "top_p", "top_k", "logprobs",
          "max_prompt_tokens", "max_response_tokens", "max_model_len", "chat_template")

TODAY = {
    "data.dataset_path": f"{TASKSET}.path",
    "data.subset_name": f"{TASKSET}.subset_name",
    "data.train_split": f"{TASKSET}.split",
    "data.format": f"{TASKSET}.format",
    "data.format_config": f"{TASKSET}.format",
    "data.default_workflow_type": "buffer.explorer_input.default_workflow_type",
    "data.default_reward_fn_type": "buffer.explorer_input.default_reward_fn_type",
    "data.batch_size": "buffer.batch_size",
    "data.total_epochs": "buffer.total_epochs",
    "model.checkpoint_path": "checkpoint_root_dir",
    "buffer.train_dataset": BUFFER,
    "buffer.train_dataset.kwargs": f"{BUFFER}.format",
    "buffer.sft_warmup_dataset": "buffer.trainer_input.sft_warmup_dataset",
    "buffer.expert_data_ratio": "algorithm.sample_strategy_args.expert_data_ratio",
    "buffer.explorer_input.reply_prefix": f"{TASKSET}.format.reply_prefix",
    f"{BUFFER}.use_priority_queue": f"{BUFFER}.replay_buffer.enable",
    f"{BUFFER}.replay_buffer_kwargs": f"{BUFFER}.replay_buffer.priority_fn_args",
    f"{BUFFER}.replay_buffer_kwargs.priority_fn": f"{BUFFER}.replay_buffer.priority_fn",
    "algorithm.mu": "algorithm.policy_loss_fn_args.mu",
    "algorithm.add_strategy": "algorithm.advantage_fn",
    **{f"explorer.{name}": f"explorer.rollout_model.{name}" for name in ENGINE},
    "explorer.repeat_times": "algorithm.repeat_times",
    "synchronizer.sync_iteration_interval": "synchronizer.sync_interval",
    "trainer.algorithm_type": "algorithm.algorithm_type",
    "trainer.eval_interval": "explorer.eval_interval",
    "trainer.sft_warmup_steps": "buffer.trainer_input.sft_warmup_steps",
    "trainer.sft_warmup_iteration": "buffer.trainer_input.sft_warmup_steps",
    "trainer.actor_grad_clip": "trainer.grad_clip",
    "monitor.project": "project",
    "monitor.name": "name",
}
# with an algorithm that mixes demonstrations in, they were those of the warm-up
EXPERTS = {"buffer.trainer_input.sft_warmup_dataset": "buffer.trainer_input.auxiliary_buffers.sft_dataset"}
HELD_OUT = "data.eval_split"  # a set of its own now: the same data, another split
SHARED = ("data.dataset_path", "data.subset_name", "data.format", "data.format_config")


def as_today(made: Translation, given: list[Given]) -> list[Given]:
    """The keys under the names that they have now, each with its value and line; one that is there already stays."""
    there, told = {one.path for one in given}, []
    kinds = {str(one.value) for one in given if one.key.endswith("algorithm_type")}
    table = {**TODAY, **EXPERTS} if kinds & set(MIXED) else TODAY
    found = []
    for one in (one for one in given if one.key != HELD_OUT):
        path, names = _today(one.path, table)
        if path is None or path in there:
            found.append(one)
            continue
        there.add(path)
        found.append(Given(path, one.value, one.line))
        told.append(names)
    if told:
        made.chosen.append(f"Names of an older Trinity-RFT are read as those of today: {_pairs(told)}.")
    return _with_inputs([*found, *_held_out(made, given)])


def _today(path: Path, table: dict[str, str]) -> tuple[Path | None, tuple[str, str]]:
    """The path of today of an older key, or of one below it, and (older name, name); None for one that has its name."""
    stage, parts = (path[:2], path[2:]) if path[0] == "stages" else ((), path)
    for size in range(len(parts), 0, -1):
        old = ".".join(map(str, parts[:size]))
        if new := table.get(old):
            below = (int(part) if part.isdigit() else part for part in new.split("."))
            return (*stage, *below, *parts[size:]), (old, new)
    return None, ("", "")


def _pairs(told: list[tuple[str, str]]) -> str:
    """Older names with those of today; what only stands in another section now is told together."""
    sections: dict[tuple[str, str], list[str]] = {}
    for old, new in dict.fromkeys(told):
        (above, _, name), (section, _, today) = old.rpartition("."), new.rpartition(".")
        sections.setdefault((f"{above}.", section) if name == today else (old, new), []).append(name)
    return "; ".join(f"{', '.join(names)} of {old[:-1]} as below {new or 'the root'}" if old.endswith(".")
                     else f"{old} as {new}" for (old, new), names in sections.items())


def _held_out(made: Translation, given: list[Given]) -> list[Given]:
    """The set that `data.eval_split` named: what `data` says of the tasks, of that split."""
    split = next((one for one in given if one.key == HELD_OUT), None)
    if split is None or not split.value:
        return []
    shared = [(one, _today(one.path, TODAY)[0]) for one in given
              if any(one.key == key or one.key.startswith(f"{key}.") for key in SHARED) and one.value not in (None, "")]
    if not any(one.key == SHARED[0] for one, _ in shared):
        return []
    to, size = (*EVAL_SET.split(".")[:3], 0), len(TASKSET.split("."))
    made.chosen.append(f"{HELD_OUT}={split.value}: the same data, in a set to evaluate on.")
    return [Given((*to, "name"), "eval", split.line), Given((*to, "split"), split.value, split.line),
            *(Given((*to, *path[size:]), one.value, one.line) for one, path in shared)]


def _with_inputs(given: list[Given]) -> list[Given]:
    """Paths of `input_buffers` as the one list of paths that took their place."""
    paths = [one for one in given if one.path[:3] == INPUT_BUFFERS and one.path[-1] == "path"]
    if not paths or any(one.path == INPUTS for one in given):
        return given
    rest = [one for one in given if one not in paths]
    return [*rest, Given(INPUTS, [one.value for one in paths], paths[0].line)]

