"""The model of a server of OpenAI's interface (explorer.rollout_model.external), as a stage.

Writes the tokenizer by which workflows speak to it (workflows/engines/openai_engine.py) and a config.json with its
address. Nothing is asked: evaluations ask, when they run.
"""

from pipeline.job.context import Context, run_stage
from pipeline.store import files
from workflows.engines.openai_engine import text_tokenizer


def work(context: Context) -> None:
    external = context.config.explorer.rollout_model.external
    text_tokenizer().save_pretrained(context.directory)
    files.write_json(context.directory / "config.json",
                     {"base_url": external.base_url, "model_name": external.model_name})
    files.flush_tree(context.directory)
    context.made |= {"base_url": external.base_url, "model_name": external.model_name}


if __name__ == "__main__":
    run_stage(work, __doc__)
