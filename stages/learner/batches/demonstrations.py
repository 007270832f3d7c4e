"""Train batches from demonstrations (sft)."""

from pathlib import Path
from typing import Any

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.store import records
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.pictures import named
from ouroboros.stages.learner.batches.data_set import DataSet, rejected_rows
from ouroboros.stages.learner.engine.batch import Row


class Demonstrations(DataSet):
    """Demonstrated responses."""

    split, what = "sft", "demonstrations"
    advice = (", or give the task files a column data_processor.task_pipeline.format.solution_key, or leave the sft "
              "stage out of the recipe.")

    def tokenized(self, context: Context, model: Path, tasks: list[records.Task]) -> list[Row]:
        source = context.config.buffer.trainer_input.experience_buffer
        found, self.rejected = demonstration_rows(context, model, tasks, source, source.name)
        return [row for _, row in found]


def demonstration_rows(context: Context, model: Path, tasks: list[records.Task], source: Any, name: str
                       ) -> tuple[list[tuple[records.Task, Row]], list[records.Rejected]]:
    """The demonstrations within the token limits, as (task, row), a task's rows after each other; and those of which
    the chat template cannot write all. source: settings of their buffer. name: of it.

    Raises DataError when every one is over the limits, or more than buffer.max_rejected_ratio are rejected.
    """
    from ouroboros.workflows.demonstrations import demonstrations
    from ouroboros.workflows.protocol.prompts import load_tokenizer

    limits = context.config.model
    tasks, curated = list(tasks), context.inputs["tasks"]
    shown = [named(task.pictures, curated) for task in tasks]
    made = demonstrations(load_tokenizer(model, limits), tasks, context.config,
                          source.format.enable_concatenated_multi_turn, shown, context.activity.alive)
    rejected = rejected_rows(context, tasks, made, name)
    layouts = [(task, place, layout) for task, rows in zip(tasks, made, strict=True) if not isinstance(rows, str)
               for place, layout in enumerate(rows)]
    found = [
        (task, Row(f"{task.task_id}/{place}" if place else task.task_id, prompt + response, len(prompt), mask,
                   pictures=named(task.pictures, curated)))
        for task, place, (prompt, response, mask) in layouts
        if len(prompt) <= limits.max_prompt_tokens and len(response) <= limits.max_response_tokens
    ]
    if not found:
        _, _, (prompt, response, _) = min(layouts, key=lambda one: len(one[2][0]) + len(one[2][1]))
        raise DataError("every demonstration is longer than "
                        f"model.max_prompt_tokens={limits.max_prompt_tokens} or "
                        f"model.max_response_tokens={limits.max_response_tokens}; the shortest has {len(prompt)} "
                        f"and {len(response)} (of a whole conversation: all after the first prompt). Raise them.")
    return found, rejected
