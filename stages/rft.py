"""Reinforcement fine-tuning: an explorer and a trainer, resident for the whole stage, that meet in files.

Reads tasks.parquet and a model; writes experience/, rollouts/, trained/, steps/, weights/, checkpoints/ and model/.
The explorer is stages/explore.py (vLLM), the trainer stages/learn.py (DeepSpeed); which weights make which rollouts
is decided by pipeline/schedule.py. This process starts both, follows the steps, and ends both when one dies.
"""

import importlib.util
import os
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.process import Context, environment, run_stage
from stages.children import Child, cores, supervise
from stages.follow import Follower, finish_training


def share_cores(available: list[int], overlap: bool, gpu: bool) -> tuple[list[int], list[int]]:
    """CPU cores of explorer and trainer: disjoint when both compute on them at once, otherwise all for both."""
    if gpu or not overlap or len(available) < 2:
        return available, available
    return available[:1], available[1:]


def share_gpus(visible: list[str], config) -> tuple[list[str], list[str]]:
    """GPUs of explorer and trainer: disjoint when both hold them at once, otherwise the first ones for both.

    Raises ConfigError when there are too few.
    """
    engine, ranks = config.explorer.rollout_model.tensor_parallel_size, config.trainer.ranks
    together = config.mode == "both"
    needed = engine + ranks if together else max(engine, ranks)
    if len(visible) < needed:
        advice = " Set mode=colocate to take turns on the same ones, or ask for fewer." if together else ""
        raise ConfigError(f"mode={config.mode} needs {needed} GPUs ({ranks} for trainer.ranks, {engine} for "
                          f"tensor_parallel_size), found {len(visible)}.{advice}")
    return (visible[ranks : ranks + engine] if together else visible[:engine]), visible[:ranks]


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


def work(context: Context) -> None:
    config = context.config
    gpus = visible_gpus(config)
    explorer_cores, trainer_cores = share_cores(cores(), config.synchronizer.sync_offset > 0, bool(gpus))
    trainer = Child("trainer", "stages.learn", trainer_cores, config.trainer.ranks)
    explorer = Child("explorer", "stages.explore", explorer_cores, environment=environment(config))
    if gpus:
        for child, own in zip((explorer, trainer), share_gpus(gpus, config), strict=True):
            child.environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
    with Follower(context) as follower:
        supervise(context, [explorer, trainer], follower.poll)
    finish_training(context)


if __name__ == "__main__":
    run_stage(work, __doc__)
