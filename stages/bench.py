"""Evaluates policies of a training stage in step order (mode=bench): all kept checkpoints, or those of given steps.

Reads tasks.parquet and the directory of a training stage; writes samples/ and scores/, one file each per step. Steps
that already have scores are skipped. The last checkpoint is the stage's model, which stages/evaluate.py scores. The
evaluator is stages/score.py.
"""

from ouroboros.pipeline.job.context import Context, run_stage
from ouroboros.pipeline.job.policies import benched
from ouroboros.pipeline.store import tables
from ouroboros.stages.evaluate import run_evaluator


def work(context: Context) -> None:
    steps = benched(context.inputs["model"], context.config.explorer.bench_steps)
    if set(steps) - {*tables.steps_present(context.directory, "scores")}:
        run_evaluator(context)
    if not steps:
        context.log.info("only the last checkpoint was kept (trainer.max_checkpoints_to_keep)")
    context.made["checkpoints"] = steps


if __name__ == "__main__":
    run_stage(work, __doc__)
