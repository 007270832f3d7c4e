"""Train batches from demonstrations (sft)."""

from pathlib import Path
from typing import Any

from pipeline.job.context import Context
from pipeline.store import records
from pipeline.store.errors import DataError
from stages.learner.batch import Row
from stages.learner.batches.data_set import DataSet


class Demonstrations(DataSet):
    """Demonstrated responses."""

    split, what = "sft", "demonstrations"
    advice = (", or give the task files a column data_processor.task_pipeline.format.solution_key, or leave the sft "
              "stage out of the recipe.")

    def tokenized(self, context: Context, model: Path, tasks: list[records.Task]) -> list[Row]:
        source = context.config.buffer.trainer_input.experience_buffer
        return [row for _, row in demonstration_rows(context, model, tasks, source)]


def demonstration_rows(context: Context, model: Path, tasks: list[records.Task], source: Any
                       ) -> list[tuple[records.Task, Row]]:
    """The demonstrations within the token limits, as (task, row). source: settings of their buffer.

    Raises DataError when every one is over the limits.
    """
    from workflows.demonstrations import last_responses, whole_conversations
    from workflows.prompts import load_tokenizer

    limits = context.config.model
    every_turn = source.path is not None and source.format.enable_concatenated_multi_turn
    layouts = (whole_conversations if every_turn else last_responses)(
        load_tokenizer(model, limits), tasks, context.config)
    found = [
        (task, Row(task.task_id, prompt + response, len(prompt), mask))
        for task, (prompt, response, mask) in zip(tasks, layouts, strict=True)
        if len(prompt) <= limits.max_prompt_tokens and len(response) <= limits.max_response_tokens
    ]
    if not found:
        prompt, response, _ = min(layouts, key=lambda layout: len(layout[0]) + len(layout[1]))
        raise DataError("every demonstration is longer than "
                        f"model.max_prompt_tokens={limits.max_prompt_tokens} or "
                        f"model.max_response_tokens={limits.max_response_tokens}; the shortest has {len(prompt)} "
                        f"and {len(response)} (of a whole conversation: all after the first prompt). Raise them.")
    return found
