"""Train batches of pairs (dpo, ipo, kto): a preferred and a rejected response to the same prompt."""

import numpy as np

from pipeline import records, tables
from pipeline.errors import DataError
from pipeline.process import Context
from pipeline.schedule import tasks_of_step
from stages.learner.batches import Batch
from stages.learner.packing import Row


class Preferences:
    """Pairs (`split` preference), batch_size of them to a step, every one once an epoch.

    rows: row 2k is the chosen response of pair k, row 2k + 1 the rejected one.
    """

    hands_over = False  # no explorer waits for weights

    def __init__(self, context: Context, model):
        self.context, config = context, context.config
        pairs = tables.read_tasks(context.inputs["tasks"], "preference")
        if not pairs:
            raise DataError(f"{context.inputs['tasks']}/tasks.parquet has no pairs (split preference): rows with a "
                            "chosen and a rejected response. Give the task files both columns, and name them in "
                            "format.chosen_key and format.rejected_key.")
        self.rows = [row for pair in self._tokenized(pairs, model) for row in pair]
        count = len(self.rows) // 2
        context.log.info("%d pairs, %d over the token limits left out", count, len(pairs) - count)
        if not self.rows:
            raise DataError("every pair has a prompt or a response longer than model.max_prompt_tokens or "
                            "model.max_response_tokens; raise them.")
        self.total_steps = config.buffer.total_steps or max(
            config.buffer.total_epochs * count // config.buffer.batch_size, 1)

    def _tokenized(self, pairs: list[records.Task], model):
        """Pairs of rows; a pair is left out whole when one of its texts is over the limits."""
        from workflows.prompts import load_tokenizer, prompt_text, prompt_tokens, response_tokens

        limits, tokenizer = self.context.config.model, load_tokenizer(model)
        system = self.context.config.buffer.explorer_input.system_prompt
        prompts = prompt_tokens(tokenizer, [prompt_text(tokenizer, pair.question, system) for pair in pairs])
        chosen, rejected = (response_tokens(tokenizer, [getattr(pair, which) for pair in pairs])
                            for which in ("chosen", "rejected"))
        for pair, prompt, *responses in zip(pairs, prompts, chosen, rejected, strict=True):
            longest = max(len(response) for response in responses)
            if len(prompt) <= limits.max_prompt_tokens and longest <= limits.max_response_tokens:
                yield [Row(f"{pair.task_id}/{pair.row}/{which}", prompt + response, len(prompt), [1] * len(response))
                       for which, response in zip(("chosen", "rejected"), responses, strict=True)]

    def cut(self, step: int) -> list[Row]:
        config = self.context.config
        chosen = tasks_of_step(len(self.rows) // 2, config.buffer.batch_size, step, config.seed)
        return [row for pair in chosen for row in self.rows[2 * pair : 2 * pair + 2]]

    def batch(self, cut: list[Row]) -> Batch:
        return Batch(cut)

    def publishes(self, step: int) -> bool:
        return False

    def finish(self, step: int, batch: Batch, logprobs: list[np.ndarray]) -> list[records.Trained]:
        """Pairs leave no table behind but `reference`."""
        return []
