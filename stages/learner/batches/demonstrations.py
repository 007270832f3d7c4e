"""Train batches from demonstrations (sft)."""

from pathlib import Path
from typing import Any

from pipeline.job.context import Context
from pipeline.job.tasksets import read_buffer
from pipeline.store import records
from pipeline.store.errors import DataError
from stages.learner.batches.choose import GivenRows
from stages.learner.engine.packing import Row


class Demonstrations(GivenRows):
    """Demonstrated responses (`split` sft), train_batch_size (else batch_size) per step, once per epoch."""

    def __init__(self, context: Context, model):
        source = context.config.buffer.trainer_input.experience_buffer
        rows = demonstrated(context, model, source.name, source)
        if not rows:
            raise DataError(f"{context.inputs['tasks']}/tasks.parquet has no demonstrations (split sft). Set "
                            "buffer.trainer_input.experience_buffer.path, or give the task files a column "
                            "data_processor.task_pipeline.format.solution_key, or leave the sft stage out of the "
                            "recipe.")
        super().__init__(context, [row for _, row in rows])


def demonstrated(context: Context, model: Path, name: str, source: Any) -> list[tuple[records.Task, Row]]:
    """The demonstrations of a buffer within the token limits, as (task, row); empty when there are none.

    model: directory with the tokenizer. name: of the buffer; source: its settings. Raises DataError when every one is
    over the limits.
    """
    from workflows.demonstrations import last_responses, whole_conversations
    from workflows.prompts import load_tokenizer

    tasks = read_buffer(context.inputs["tasks"], name, source.path, "sft")
    if not tasks:
        return []
    config = context.config
    every_turn = source.path is not None and source.format.enable_concatenated_multi_turn
    made = (whole_conversations if every_turn else last_responses)(load_tokenizer(model, config.model), tasks, config)
    limits = config.model
    kept = [
        (task, Row(task.task_id, prompt + response, len(prompt), mask))
        for task, (prompt, response, mask) in zip(tasks, made, strict=True)
        if len(prompt) <= limits.max_prompt_tokens and len(response) <= limits.max_response_tokens
    ]
    context.log.info("%d demonstrations, %d over the token limits left out", len(kept), len(tasks) - len(kept))
    if not kept:
        prompt, response, _ = min(made, key=lambda layout: len(layout[0]) + len(layout[1]))
        raise DataError("every demonstration is longer than "
                        f"model.max_prompt_tokens={limits.max_prompt_tokens} or "
                        f"model.max_response_tokens={limits.max_response_tokens}; the shortest has {len(prompt)} "
                        f"and {len(response)} (of a whole conversation: all after the first prompt). Raise them.")
    return kept
