"""The evaluator of a stage: scores one model, or several policies, on the evaluation sets with one engine.

Started by stages/evaluate.py and stages/bench.py; writes samples/ and scores/, one file each per policy, numbered by
the trainer step. The evaluation itself is in workflows/evaluation.py.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.job.opening import opening
from ouroboros.pipeline.job.policies import benched, opened
from ouroboros.pipeline.job.tasksets import HELD
from ouroboros.pipeline.settings.kinds import KINDS
from ouroboros.pipeline.store import checkpoints, files, tables
from ouroboros.pipeline.store.pictures import has_pictures
from ouroboros.stages.explorer.children import run_child
from ouroboros.stages.explorer.watched_rewards import WatchedRewards
from ouroboros.workflows.engines.open import begin_engines, limited, open_engine, seeing
from ouroboros.workflows.evaluation import DECODINGS, Subject, evaluate, read_sets
from ouroboros.workflows.protocol.hugging_face import import_light
from ouroboros.workflows.protocol.prompts import end_tokens, load_tokenizer

SCRATCH = ".policy.tmp"  # weights of a published version, while the engine loads them
PASS = "evaluates"  # the activity of which stages/evaluate.py counts how often it was completed


Opened = Callable[[int], AbstractContextManager[Path]]  # step -> its model directory, while it is needed


def score(context: Context) -> None:
    kind = KINDS[files.read_json(context.directory / "stage.json")["kind"]]
    (score_benched if kind.benches else score_model)(context)


def score_model(context: Context) -> None:
    directory = context.inputs["model"]
    model = nullcontext(checkpoints.model_directory(directory))
    score_models(context, checkpoints.model_name(directory), [checkpoints.trained_steps(directory)], lambda _: model)


def score_benched(context: Context) -> None:
    """Evaluates the policies of a bench that have no scores yet."""
    trained, scored = context.inputs["model"], tables.steps_present(context.directory, "scores")
    steps = [step for step in benched(trained, context.config.explorer.bench_steps) if step not in scored]
    score_models(context, trained.name, steps, lambda step: opened(trained, step, context.directory / SCRATCH))


def score_models(context: Context, name: str, steps: list[int], model_of: Opened) -> None:
    """Evaluates policies with one engine. name: of the model in the tables. steps: at least one."""
    engine, passes = None, [0, 0]
    context.config = limited(context.config)

    def advance(done: str = "") -> None:
        passes[0] += 1
        context.activity.now(PASS if passes[0] <= passes[1] else "ends", f"{passes[0]} of {passes[1]}")

    for step in steps:
        with model_of(step) as model:
            if engine is None:
                with begin_engines(model, context.config, context.directory) as begun:
                    import_light()
                    tokenizer = load_tokenizer(model, context.config.model)
                    rewards = WatchedRewards(context.config, context.activity, context.directory)
                    sets = read_sets(context, tokenizer, rewards)
                    passes[1] = len(DECODINGS) * len(sets) * len(steps)
                    shown = has_pictures(context.inputs.get(HELD, context.inputs["tasks"]))
                    context.config = config = seeing(context.config, model, shown)
                    with opening():
                        engine = open_engine(model, config, end_tokens(tokenizer, model), logs=context.directory,
                                             begun=begun)
                advance()
            else:
                engine.load_weights(model)
        evaluate(context, engine, tokenizer, sets, Subject(name, step), advance)
    engine.close()


if __name__ == "__main__":
    run_child(score, "evaluator", __doc__)
