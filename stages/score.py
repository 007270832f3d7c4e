"""The evaluator of a stage: scores one model, or several checkpoints, on the evaluation sets with one engine.

Started by stages/evaluate.py and stages/bench.py; writes samples/ and scores/, one file each per checkpoint, numbered
by the trainer step. The evaluation itself is in workflows/evaluation.py.
"""

from pathlib import Path

from pipeline.job.context import Context
from pipeline.job.opening import opening
from pipeline.store import checkpoints, files, tables
from stages.explorer.children import run_child
from workflows.engines.open import open_engine
from workflows.evaluation import DECODINGS, Subject, evaluate, read_sets
from workflows.prompts import end_tokens, load_tokenizer
from workflows.rewards import Rewards

PASS = "evaluates"  # the activity of which stages/evaluate.py counts how often it was completed


def score(context: Context) -> None:
    of_kind = {"evaluate": one_model, "bench": checkpoints_but_the_last}
    score_models(context, *of_kind[files.read_json(context.directory / "stage.json")["kind"]](context))


def one_model(context: Context) -> tuple[str, dict[int, Path]]:
    """Returns the name of the model in the tables, and trainer step -> Hugging Face directory."""
    directory = context.inputs["model"]
    return checkpoints.model_name(directory), {
        checkpoints.trained_steps(directory): checkpoints.model_directory(directory)}


def checkpoints_but_the_last(context: Context) -> tuple[str, dict[int, Path]]:
    """Returns the same of the checkpoints of a training stage that have no scores yet; the last is its model."""
    trained, scored = context.inputs["model"], tables.steps_present(context.directory, "scores")
    return trained.name, {step: checkpoints.checkpoint_directory(trained, step) / "model"
                          for step in checkpoints.complete_checkpoints(trained)[:-1] if step not in scored}


def score_models(context: Context, name: str, models: dict[int, Path]) -> None:
    """Evaluates versions of one model. name: of the model in the tables. models: at least one."""
    first = next(iter(models.values()))
    tokenizer = load_tokenizer(first, context.config.model)
    sets = read_sets(context, tokenizer, Rewards(context.config))
    with opening():
        engine = open_engine(first, context.config, end_tokens(tokenizer, first), logs=context.directory)
    passes = [0, len(DECODINGS) * len(sets) * len(models)]

    def advance(done: str = "") -> None:
        passes[0] += 1
        context.activity.now(PASS if passes[0] <= passes[1] else "ends", f"{passes[0]} of {passes[1]}")

    advance()
    for step, model in models.items():
        if model != first:
            engine.load_weights(model)
        evaluate(context, engine, tokenizer, sets, Subject(name, step), advance)
    engine.close()


if __name__ == "__main__":
    run_child(score, "evaluator", __doc__)
