"""Which GPUs and CPU cores there are, and how the processes of a stage share them. Imports no torch.

GPUs in order: the trainer's ranks, then the engines (engine_num x tensor_parallel_size), then the auxiliary models
(engine_num each). Nobody shares one, unless mode=colocate: then all three begin at the first.
"""

import importlib.util
import os
from pathlib import Path

from pipeline.errors import ConfigError


def cores() -> list[int]:
    """The CPU cores this process may use, ascending."""
    return sorted(os.sched_getaffinity(0))


def share_cores(available: list[int], overlap: bool, gpu: bool, engines: int) -> tuple[list[int], list[int]]:
    """CPU cores of explorer and trainer: disjoint when both compute on them at once, otherwise all for both.

    The explorer then gets one core for each engine, and the trainer at least one.
    """
    if gpu or not overlap or len(available) < 2:
        return available, available
    first = min(engines, len(available) - 1)
    return available[:first], available[first:]


def deal_cores(available: list[int], parts: int) -> list[list[int]]:
    """The cores of each of `parts` processes: disjoint, or one each, several times given, when there are too few."""
    if len(available) < parts:
        return [[available[part % len(available)]] for part in range(parts)]
    return [available[part::parts] for part in range(parts)]


def torch_has_cuda() -> bool:
    """Whether the installed torch can use a GPU at all, found without importing it."""
    found = importlib.util.find_spec("torch")
    return bool(found and found.origin and (Path(found.origin).parent / "lib" / "libtorch_cuda.so").exists())


def visible_gpus(config) -> list[str]:
    """What CUDA_VISIBLE_DEVICES names, or all that NVIDIA's driver shows; none for a CPU build of torch."""
    if not torch_has_cuda():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        found = [name for name in named.split(",") if name.strip()]
    else:
        found = [str(index) for index in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]
    return found[: config.cluster.gpu_per_node]


def engine_gpus(config) -> int:
    """GPUs that all engines take."""
    model = config.explorer.rollout_model
    return model.engine_num * model.tensor_parallel_size


def first_auxiliary_gpu(config) -> int:
    """Position, among the GPUs of the process that answers, of the first one that an auxiliary model takes."""
    return 0 if config.mode == "colocate" else engine_gpus(config)


def answering_gpus(config) -> int:
    """GPUs that engines and auxiliary models take: those of an explorer or an evaluation."""
    auxiliary = sum(model.engine_num for model in config.explorer.auxiliary_models)
    return max(engine_gpus(config), first_auxiliary_gpu(config) + auxiliary)


def share_gpus(visible: list[str], config, ranks: int) -> tuple[list[str], list[str]]:
    """GPUs of explorer and trainer: disjoint when both hold them at once, otherwise the first ones for both.

    ranks: of the trainer; 0 for an evaluation, which has none. Raises ConfigError when there are too few.
    """
    answering, together = answering_gpus(config), config.mode != "colocate"
    needed = answering + ranks if together else max(answering, ranks)
    if len(visible) < needed:
        model = config.explorer.rollout_model
        parts = [f"{model.engine_num} x {model.tensor_parallel_size} for explorer.rollout_model (engine_num x "
                 "tensor_parallel_size)"]
        parts += [f"{m.engine_num} for explorer.auxiliary_models ({m.model_path})"
                  for m in config.explorer.auxiliary_models]
        parts += [f"{ranks} for trainer.ranks"] if ranks else []
        advice = " Set mode=colocate to take turns on the same ones, or ask for fewer." if together and ranks else ""
        raise ConfigError(f"mode={config.mode} needs {needed} GPUs ({', '.join(parts)}), found {len(visible)}.{advice}")
    first = ranks if together else 0
    return visible[first : first + answering], visible[:ranks]
