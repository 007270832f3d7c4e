"""Reinforcement fine-tuning: an explorer and a trainer, resident for the whole stage, that meet in files.

Reads tasks.parquet and a model; writes experience/, rollouts/, trained/, steps/, weights/, checkpoints/ and model/.
The explorer is stages/explore.py (vLLM), the trainer stages/learn.py (DeepSpeed); which weights make which rollouts
is decided by pipeline/schedule.py. This process starts both, follows the steps, and ends both when one dies.
"""

from pipeline.devices import needed_gpus, visible_gpus
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
    needed = needed_gpus(config.mode, ranks, engine)
    if len(visible) < needed:
        advice = " Set mode=colocate to take turns on the same ones, or ask for fewer." if together else ""
        raise ConfigError(f"mode={config.mode} needs {needed} GPUs ({ranks} for trainer.ranks, {engine} for "
                          f"tensor_parallel_size), found {len(visible)}.{advice}")
    return (visible[ranks : ranks + engine] if together else visible[:engine]), visible[:ranks]


def work(context: Context) -> None:
    config = context.config
    gpus = visible_gpus(config.cluster.gpu_per_node)
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
