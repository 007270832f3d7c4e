"""Token ids of text that a stage trains on, known before its first step: what proofs and probes compare.

On random tokens a trained model is ill-conditioned: rounding alone moves log-probs by nats.
"""

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.job.tasksets import read_train
from ouroboros.pipeline.store import records, tables
from ouroboros.stages.learner.batches.data_set import DataSet
from ouroboros.stages.learner.batches.rollouts import Rollouts

READ = 64  # tasks of each training set, or attempts of a step


def tokens_of_text(context: Context, model: Path, source: DataSet | Rollouts, most: int) -> list[int]:
    """At most `most` ids: of the rows of a data set; of recorded prompts and responses; of prompts, each with the
    answer or solution of its task. model: with the tokenizer."""
    if isinstance(source, DataSet):
        parts = (row.tokens for row in source.rows)
    elif "experience" in context.inputs:
        parts = _recorded(context.inputs["experience"])
    else:
        parts = _prompts(context, model)
    return list(islice(chain.from_iterable(parts), most))


def _recorded(experience: Path) -> Iterator[list[int]]:
    for step in tables.steps_present(experience, "experience"):  # of a failed attempt there is none
        rows = tables.read(tables.step_file(experience, "experience", step), records.Experience)
        yield from (row["prompt_tokens"] + row["response_tokens"] for row in rows.slice(0, READ).to_pylist())


def _prompts(context: Context, model: Path) -> Iterator[list[int]]:
    from ouroboros.workflows.protocol.prompts import load_tokenizer, prompt_tokens
    from ouroboros.workflows.template_rows import task_prompts

    config, tokenizer = context.config, load_tokenizer(model, context.config.model)
    sets = read_train(context.inputs["tasks"], config.buffer.explorer_input)
    tasks = [tasks[place] for _, tasks in sets for place in range(min(READ, len(tasks)))]
    prompts = prompt_tokens(tokenizer, task_prompts(tokenizer, tasks, config)[0])
    answers = tokenizer([task.solution or task.answer for task in tasks], add_special_tokens=False)["input_ids"]
    yield from (prompt + answer for prompt, answer in zip(prompts, answers, strict=True))
