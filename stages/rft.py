"""Reinforcement fine-tuning: an explorer and a trainer, resident for the whole stage, that meet in files.

Reads tasks.parquet and a model; writes experience/, rollouts/, trained/, steps/, weights/, checkpoints/ and model/.
The explorer is stages/explore.py (vLLM), the trainer stages/learn.py (DeepSpeed); which weights make which rollouts
is decided by pipeline/schedule.py. This process starts both, follows the steps, and ends both when one dies.
"""

from pathlib import Path

from pipeline.process import Context, run_stage
from stages.children import Child, cores, supervise
from stages.follow import Follower, finish_training


def share_cores(available: list[int], overlap: bool, gpu: bool) -> tuple[list[int], list[int]]:
    """CPU cores of explorer and trainer: disjoint when both compute on them at once, otherwise all for both."""
    if gpu or not overlap or len(available) < 2:
        return available, available
    return available[:1], available[1:]


def _has_gpu(config) -> bool:
    """Whether NVIDIA's driver shows a device; this process does without torch."""
    declared = config.cluster.gpu_per_node
    return declared > 0 if declared is not None else Path("/dev/nvidiactl").exists()


def work(context: Context) -> None:
    config = context.config
    explorer_cores, trainer_cores = share_cores(cores(), config.synchronizer.sync_offset > 0, _has_gpu(config))
    trainer = Child("trainer", "stages.learn", trainer_cores, config.trainer.ranks)
    explorer = Child("explorer", "stages.explore", explorer_cores)
    with Follower(context) as follower:
        supervise(context, [explorer, trainer], follower.poll)
    finish_training(context)


if __name__ == "__main__":
    run_stage(work, __doc__)
