"""The model of a server of OpenAI's interface (explorer.rollout_model.external), as a stage.

Writes the tokenizer by which workflows speak to it (workflows/engines/openai_engine.py) and a config.json with its
address. Nothing is asked: evaluations ask, when they run.
"""

from ouroboros.pipeline.job.context import Context, run_stage
from ouroboros.pipeline.store import files
from ouroboros.workflows.engines.openai_engine import write_model


def work(context: Context) -> None:
    context.made |= write_model(context.directory, context.config.explorer.rollout_model.external)
    files.flush_tree(context.directory)


if __name__ == "__main__":
    run_stage(work, __doc__)
