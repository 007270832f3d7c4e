"""Evaluates all checkpoints of a training stage but the last, in step order (mode=bench).

Reads tasks.parquet and the directory of a training stage; writes samples/ and scores/, one file each per checkpoint.
Checkpoints that already have scores are skipped. The last checkpoint is the stage's model, which stages/evaluate.py
scores.
"""

import os

from pipeline.job.context import Context, environment, run_stage
from pipeline.job.opening import opening
from pipeline.job.progress import Progress
from pipeline.job.shares import answering_environment
from pipeline.job.tracking import open_tracker
from pipeline.store import checkpoints, tables
from workflows.engines.open import open_engine
from workflows.evaluation import DECODINGS, Subject, evaluate, read_sets
from workflows.prompts import end_tokens, load_tokenizer
from workflows.rewards import Rewards


def work(context: Context) -> None:
    os.environ.update(environment(context.config) | answering_environment(context.config))
    kept = checkpoints.complete_checkpoints(context.inputs["model"])[:-1]
    missing = [step for step in kept if step not in tables.steps_present(context.directory, "scores")]
    if missing:
        _score(context, missing)
    if not kept:
        context.log.info("no checkpoint beside the last was kept (trainer.max_checkpoints_to_keep)")
    context.made["checkpoints"] = kept


def _score(context: Context, steps: list[int]) -> None:
    trained = context.inputs["model"]
    models = {step: checkpoints.checkpoint_directory(trained, step) / "model" for step in steps}
    tokenizer = load_tokenizer(models[steps[0]], context.config.model)
    sets = read_sets(context, tokenizer, Rewards(context.config))
    passes = len(DECODINGS) * len(sets) * len(steps)
    with open_tracker(context) as tracker, Progress(context.log, passes, "passes", context.name) as progress:
        ends = end_tokens(tokenizer, models[steps[0]])
        with opening():
            engine = open_engine(models[steps[0]], context.config, ends, logs=context.directory)
        for step in steps:
            if step != steps[0]:
                engine.load_weights(models[step])
            told = f"step {step}: "
            scores = evaluate(context, engine, tokenizer, sets, Subject(trained.name, step),
                              lambda done, told=told: progress.advance(1, told + done))
            tracker.log_scores(scores, step)
        engine.close()


if __name__ == "__main__":
    run_stage(work, __doc__)
