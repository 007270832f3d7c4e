"""Train batches from demonstrations (sft)."""

import numpy as np

from pipeline import records
from pipeline.errors import DataError
from pipeline.process import Context
from pipeline.schedule import tasks_of_step
from pipeline.tasksets import read_buffer
from stages.learner.batches import Batch
from stages.learner.packing import Row


class Demonstrations:
    """Demonstrated responses (`split` sft), train_batch_size (else batch_size) to a step, every one once an epoch."""

    hands_over = False  # no explorer waits for weights

    def __init__(self, context: Context, model):
        from workflows.demonstrations import last_responses, whole_conversations
        from workflows.prompts import load_tokenizer

        self.context, config = context, context.config
        source = config.buffer.trainer_input.experience_buffer
        rows = read_buffer(context.inputs["tasks"], source, "sft")
        if not rows:
            raise DataError(f"{context.inputs['tasks']}/tasks.parquet has no demonstrations (split sft). Set "
                            "buffer.trainer_input.experience_buffer.path, or give the task files a column "
                            "data_processor.task_pipeline.format.solution_key, or leave the sft stage out of the "
                            "recipe.")
        every_turn = source.path is not None and source.format.enable_concatenated_multi_turn
        tokenizer = load_tokenizer(model, config.model)
        made = (whole_conversations if every_turn else last_responses)(tokenizer, rows, config)
        limits = config.model
        self.rows = [
            Row(row.task_id, prompt + response, len(prompt), mask)
            for row, (prompt, response, mask) in zip(rows, made, strict=True)
            if len(prompt) <= limits.max_prompt_tokens and len(response) <= limits.max_response_tokens
        ]
        context.log.info("%d demonstrations, %d over the token limits left out", len(self.rows),
                         len(rows) - len(self.rows))
        if not self.rows:
            prompt, response, _ = min(made, key=lambda layout: len(layout[0]) + len(layout[1]))
            raise DataError("every demonstration is longer than "
                            f"model.max_prompt_tokens={limits.max_prompt_tokens} or "
                            f"model.max_response_tokens={limits.max_response_tokens}; the shortest has {len(prompt)} "
                            f"and {len(response)} (of a whole conversation: all after the first prompt). Raise them.")
        self.batch_size = config.buffer.train_batch_size or config.buffer.batch_size
        self.total_steps = config.buffer.total_steps or max(
            config.buffer.total_epochs * len(self.rows) // self.batch_size, 1)

    def cut(self, step: int) -> list[Row]:
        chosen = tasks_of_step(len(self.rows), self.batch_size, step, self.context.config.seed)
        return [self.rows[i] for i in chosen]

    def batch(self, cut: list[Row]) -> Batch:
        return Batch(cut)

    def publishes(self, step: int) -> bool:
        return False

    def finish(self, step: int, batch: Batch, logprobs: list[np.ndarray]) -> list[records.Trained]:
        """Demonstrations leave no table behind."""
        return []
