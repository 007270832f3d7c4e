"""Evaluates a model on held-out tasks: greedy accuracy, sampled accuracy, pass@k, with 95% intervals.

Reads tasks.parquet and a model; writes samples/ (every response) and scores/, one file each, numbered by the trainer
step that produced the model. The evaluation itself is in workflows/evaluation.py.
"""

import os

from pipeline.job.context import Context, environment, run_stage
from pipeline.job.opening import opening
from pipeline.job.progress import Progress
from pipeline.job.shares import answering_environment
from pipeline.job.tracking import open_tracker
from pipeline.store import checkpoints
from workflows.engines.open import open_engine
from workflows.evaluation import DECODINGS, Subject, evaluate, read_sets
from workflows.prompts import end_tokens, load_tokenizer
from workflows.rewards import Rewards


def work(context: Context) -> None:
    os.environ.update(environment(context.config) | answering_environment(context.config))
    directory = context.inputs["model"]
    model = checkpoints.model_directory(directory)
    tokenizer = load_tokenizer(model, context.config.model)
    sets = read_sets(context, tokenizer, Rewards(context.config))
    subject = Subject(checkpoints.model_name(directory), checkpoints.trained_steps(directory))
    passes = len(DECODINGS) * len(sets)
    with open_tracker(context) as tracker, Progress(context.log, passes, "passes", context.name) as progress:
        with opening():
            engine = open_engine(model, context.config, end_tokens(tokenizer, model), logs=context.directory)
        scores = evaluate(context, engine, tokenizer, sets, subject, lambda done: progress.advance(1, done))
        engine.close()
        tracker.log_scores(scores, subject.step)
    for row in scores:
        context.made[f"{row.taskset}/{row.metric}"] = [round(row.value, 4), round(row.low, 4), round(row.high, 4)]


if __name__ == "__main__":
    run_stage(work, __doc__)
