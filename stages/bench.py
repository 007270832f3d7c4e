"""Evaluates all checkpoints of a training stage but the last, in step order (mode=bench).

Reads tasks.parquet and the directory of a training stage; writes samples/ and scores/, one file each per checkpoint.
Checkpoints that already have scores are skipped. The last checkpoint is the stage's model, which stages/evaluate.py
scores. The evaluator is stages/score.py.
"""

from pipeline.job.context import Context, run_stage
from pipeline.store import checkpoints, tables
from stages.evaluate import run_evaluator


def work(context: Context) -> None:
    kept = checkpoints.complete_checkpoints(context.inputs["model"])[:-1]
    if set(kept) - {*tables.steps_present(context.directory, "scores")}:
        run_evaluator(context)
    if not kept:
        context.log.info("only the last checkpoint was kept (trainer.max_checkpoints_to_keep)")
    context.made["checkpoints"] = kept


if __name__ == "__main__":
    run_stage(work, __doc__)
