"""Train batches from demonstrations (sft)."""

import numpy as np

from pipeline import records, tables
from pipeline.errors import DataError
from pipeline.process import Context
from pipeline.schedule import tasks_of_step
from stages.learner.batches import Batch
from stages.learner.packing import Row


class Demonstrations:
    """Demonstrated responses (`split` sft), batch_size to a step, every one once an epoch."""

    hands_over = False  # no explorer waits for weights

    def __init__(self, context: Context, model):
        from workflows.prompts import load_tokenizer, prompt_text, prompt_tokens, response_tokens

        self.context, config = context, context.config
        rows = tables.read_tasks(context.inputs["tasks"], "sft")
        if not rows:
            raise DataError(f"{context.inputs['tasks']}/tasks.parquet has no demonstrations (split sft): rows with a "
                            "solution. Give the task files a column data_processor.task_pipeline.format.solution_key, "
                            "or leave the sft stage out of the recipe.")
        tokenizer = load_tokenizer(model)
        system = config.buffer.explorer_input.system_prompt
        prompts = prompt_tokens(tokenizer, [prompt_text(tokenizer, row.question, system) for row in rows])
        responses = response_tokens(tokenizer, [row.solution for row in rows])
        limits = config.model
        self.rows = [
            Row(row.task_id, prompt + response, len(prompt), [1] * len(response))
            for row, prompt, response in zip(rows, prompts, responses, strict=True)
            if len(prompt) <= limits.max_prompt_tokens and len(response) <= limits.max_response_tokens
        ]
        context.log.info("%d demonstrations, %d over the token limits left out", len(self.rows),
                         len(rows) - len(self.rows))
        if not self.rows:
            raise DataError("every demonstration is longer than model.max_prompt_tokens or model.max_response_tokens; "
                            "raise them.")
        self.total_steps = config.buffer.total_steps or max(
            config.buffer.total_epochs * len(self.rows) // config.buffer.batch_size, 1)

    def cut(self, step: int) -> list[Row]:
        config = self.context.config
        chosen = tasks_of_step(len(self.rows), config.buffer.batch_size, step, config.seed)
        return [self.rows[i] for i in chosen]

    def batch(self, cut: list[Row]) -> Batch:
        return Batch(cut)

    def publishes(self, step: int) -> bool:
        return False

    def finish(self, step: int, batch: Batch, logprobs: list[np.ndarray]) -> list[records.Trained]:
        """Demonstrations leave no table behind."""
        return []
