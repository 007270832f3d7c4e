"""Supervised training on demonstrations (sft), with DeepSpeed ZeRO.

Reads tasks.parquet (split sft) and a model; writes steps/, checkpoints/ and model/. The trainer itself is
stages/learn.py, one process per rank; this process starts it, follows its steps and reports them.
"""

from pipeline.devices import cores
from pipeline.process import Context, run_stage
from stages.children import Child, supervise
from stages.follow import Follower, finish_training


def work(context: Context) -> None:
    trainer = Child("trainer", "stages.learn", cores(), context.config.trainer.ranks)
    with Follower(context) as follower:
        supervise(context, [trainer], follower.poll)
    finish_training(context)


if __name__ == "__main__":
    run_stage(work, __doc__)
