"""Evaluates all checkpoints of a training stage but the last, in step order (mode=bench).

Reads tasks.parquet and the directory of a training stage; writes samples/ and scores/, one file each per checkpoint.
Checkpoints that already have scores are skipped. The last checkpoint is the stage's model, which stages/evaluate.py
scores.
"""

from pipeline.job.context import Context, run_stage
from pipeline.store import checkpoints, tables
from stages.evaluate import score_models


def work(context: Context) -> None:
    trained = context.inputs["model"]
    kept, scored = checkpoints.complete_checkpoints(trained)[:-1], tables.steps_present(context.directory, "scores")
    missing = {step: checkpoints.checkpoint_directory(trained, step) / "model" for step in kept if step not in scored}
    if missing:
        score_models(context, trained.name, missing)
    if not kept:
        context.log.info("only the last checkpoint was kept (trainer.max_checkpoints_to_keep)")
    context.made["checkpoints"] = kept


if __name__ == "__main__":
    run_stage(work, __doc__)
