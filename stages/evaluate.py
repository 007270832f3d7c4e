"""Evaluates a model on held-out tasks: greedy accuracy, sampled accuracy, pass@k, with 95% intervals.

Reads tasks.parquet and a model; writes samples/ (every response) and scores/, one file each, numbered by the trainer
step that produced the model. The evaluation itself is in workflows/evaluation.py.
"""

import os
from pathlib import Path

from pipeline.job.context import Context, environment, run_stage
from pipeline.job.opening import opening
from pipeline.job.progress import Progress
from pipeline.job.shares import answering_environment
from pipeline.job.tracking import open_tracker
from pipeline.store import checkpoints, records
from workflows.engines.open import open_engine
from workflows.evaluation import DECODINGS, Subject, evaluate, read_sets
from workflows.prompts import end_tokens, load_tokenizer
from workflows.rewards import Rewards


def work(context: Context) -> None:
    directory = context.inputs["model"]
    model, step = checkpoints.model_directory(directory), checkpoints.trained_steps(directory)
    (scores,) = score_models(context, checkpoints.model_name(directory), {step: model})
    for row in scores:
        context.made[f"{row.taskset}/{row.metric}"] = [round(row.value, 4), round(row.low, 4), round(row.high, 4)]


def score_models(context: Context, name: str, models: dict[int, Path]) -> list[list[records.Score]]:
    """Evaluates versions of one model with one engine; returns the scores of each.

    name: of the model in the tables. models: trainer step -> Hugging Face directory; at least one.
    """
    os.environ.update(environment(context.config.explorer.env_vars) | answering_environment(context.config))
    first = next(iter(models.values()))
    tokenizer = load_tokenizer(first, context.config.model)
    sets = read_sets(context, tokenizer, Rewards(context.config))
    passes, found = len(DECODINGS) * len(sets) * len(models), []
    with open_tracker(context) as tracker, Progress(context.log, passes, "passes", context.name) as progress:
        with opening():
            engine = open_engine(first, context.config, end_tokens(tokenizer, first), logs=context.directory)
        for step, model in models.items():
            if model != first:
                engine.load_weights(model)
            label = f"step {step}: " if len(models) > 1 else ""
            found.append(evaluate(context, engine, tokenizer, sets, Subject(name, step),
                                  lambda done, label=label: progress.advance(1, label + done)))
            tracker.log_scores(found[-1], step)
        engine.close()
    return found


if __name__ == "__main__":
    run_stage(work, __doc__)
