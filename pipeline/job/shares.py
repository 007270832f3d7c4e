"""Divides the GPUs and CPU cores of a stage, and the requests to its engines, among its processes.

GPUs in order: the trainer's ranks, then the engines (engine_num x tensor_parallel_size), then each of the auxiliary
models, likewise. GPUs are exclusive, except with mode=colocate: then all three begin at the first.
"""

import os
from collections.abc import Sequence
from itertools import pairwise

from ouroboros.pipeline.job.devices import needed_gpus, visible_gpus
from ouroboros.pipeline.settings.kinds import Kind
from ouroboros.pipeline.store.errors import ConfigError


def cores() -> list[int]:
    """Returns the CPU cores this process may use, ascending."""
    return sorted(os.sched_getaffinity(0))


def share_cores(available: list[int], overlap: bool, gpu: bool, engines: int) -> tuple[list[int], list[int]]:
    """Returns the CPU cores of explorer and trainer: disjoint when both compute on them at once, else all for both.

    The explorer then gets one core per engine, and the trainer at least one.
    """
    if gpu or not overlap or len(available) < 2:
        return available, available
    first = min(engines, len(available) - 1)
    return available[:first], available[first:]


def deal_cores(available: list[int], parts: int) -> list[list[int]]:
    """Returns the cores of each of `parts` processes: disjoint, or one each, repeated if there are too few."""
    if len(available) < parts:
        return [[available[part % len(available)]] for part in range(parts)]
    return [available[part::parts] for part in range(parts)]


def engine_gpus(config) -> int:
    """Returns the number of GPUs of all engines, where the mode has one; a server has its own."""
    if config.of_mode.only_rewards:  # such a stage knows no engine
        return 0
    model = config.explorer.rollout_model
    if model.engine_type == "openai":
        return 0
    return model.engine_num * model.tensor_parallel_size


def auxiliary_gpus(config, index: int) -> range:
    """Returns the indices, among the rollout process's GPUs, of those of an auxiliary model: after the engines'."""
    sizes = [model.engine_num * model.tensor_parallel_size for model in config.explorer.auxiliary_models]
    first = (0 if config.mode == "colocate" else engine_gpus(config)) + sum(sizes[:index])
    return range(first, first + sizes[index])


def all_auxiliary_gpus(config) -> int:
    return sum(model.engine_num * model.tensor_parallel_size for model in config.explorer.auxiliary_models)


def answering_gpus(config) -> int:
    """Returns the GPUs of an explorer or evaluation: those of engines and auxiliary models."""
    return needed_gpus(config.mode, engine_gpus(config), all_auxiliary_gpus(config))


def held_gpus(kind: Kind, config) -> int:
    """Returns the GPUs that a stage of this kind uses on a GPU machine. config: its settings, by attribute."""
    if not kind.asks_models:
        return config.trainer.ranks if kind.trains else 0
    answering = answering_gpus(config)
    return needed_gpus(config.mode, answering, config.trainer.ranks) if kind.trains else answering


def answering_environment(config) -> dict[str, str]:
    """Returns the GPU environment of a rollout process without a trainer: the first GPUs, as many as needed.

    Raises ConfigError when there are too few.
    """
    if config.cluster.node_num > 1:  # engines take GPUs of their own nodes
        return {}
    gpus = visible_gpus(config.cluster.gpu_per_node)
    return {"CUDA_VISIBLE_DEVICES": ",".join(share_gpus(gpus, config, ranks=0)[0])} if gpus else {}


def share_gpus(visible: list[str], config, ranks: int) -> tuple[list[str], list[str]]:
    """Returns the GPUs of rollouts and of the trainer: disjoint when used at once, else the first ones for both. A
    trainer that starts its teacher's engine sees all of them.

    ranks: of the trainer; 0 without one. Raises ConfigError when there are too few.
    """
    answering, together = answering_gpus(config), config.mode != "colocate"
    needed = needed_gpus(config.mode, answering, ranks)
    if len(visible) < needed:
        advice = " Set mode=colocate to take turns on the same ones, or ask for fewer." if together and ranks else ""
        raise ConfigError(f"mode={config.mode} needs {needed} GPUs ({_counted(config, ranks)}), found {len(visible)}."
                          + advice)
    first = ranks if together else 0
    return visible[first : first + answering], visible[: needed if ranks and config.own_teacher else ranks]


def _counted(config, ranks: int) -> str:
    model, auxiliary = config.explorer.rollout_model, config.explorer.auxiliary_models
    parts = [f"{model.engine_num} x {model.tensor_parallel_size} for explorer.rollout_model (engine_num x "
             "tensor_parallel_size)"]
    parts += [f"{judge.engine_num * judge.tensor_parallel_size} for explorer.auxiliary_models ({judge.model_path})"
              for judge in auxiliary]
    return ", ".join([*parts, f"{ranks} for trainer.ranks"] if ranks else parts)


def deal(costs: Sequence[int], parts: int) -> list[slice]:
    """Splits a sequence into `parts` contiguous slices of about equal cost; a slice may be empty.

    An item goes to the slice whose share of the total cost contains the item's midpoint, so each boundary is off by at
    most half an item. Neighbours stay together: the repeats of a task share one engine's prefix cache.
    """
    total, before, ends = sum(costs), 0, [0] * parts
    for index, cost in enumerate(costs):
        ends[(2 * before + cost) * parts // (2 * total)] = index + 1
        before += cost
    for part in range(1, parts):
        ends[part] = max(ends[part], ends[part - 1])
    return [slice(begin, end) for begin, end in pairwise([0, *ends])]
