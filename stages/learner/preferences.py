"""Train batches of pairs (dpo, ipo, kto): a preferred and a rejected response to the same prompt."""

import numpy as np

from pipeline import records
from pipeline.errors import DataError
from pipeline.process import Context
from pipeline.schedule import tasks_of_step
from pipeline.tasksets import read_buffer
from stages.learner.batches import Batch
from stages.learner.packing import Row


class Preferences:
    """Pairs (`split` preference), train_batch_size (else batch_size) of them to a step, every one once an epoch.

    rows: row 2k is the chosen response of pair k, row 2k + 1 the rejected one.
    """

    hands_over = False  # no explorer waits for weights

    def __init__(self, context: Context, model):
        self.context, config = context, context.config
        pairs = read_buffer(context.inputs["tasks"], config.buffer.trainer_input.experience_buffer, "preference")
        if not pairs:
            raise DataError(f"{context.inputs['tasks']}/tasks.parquet has no pairs (split preference): rows with a "
                            "chosen and a rejected response. Set buffer.trainer_input.experience_buffer.path, and name "
                            "both columns in its format.chosen_key and format.rejected_key.")
        self.rows = [row for pair in self._tokenized(pairs, model) for row in pair]
        count = len(self.rows) // 2
        context.log.info("%d pairs, %d over the token limits left out", count, len(pairs) - count)
        if not self.rows:
            raise DataError("every pair has a prompt or a response longer than model.max_prompt_tokens or "
                            "model.max_response_tokens; raise them.")
        self.batch_size = config.buffer.train_batch_size or config.buffer.batch_size
        self.total_steps = config.buffer.total_steps or max(
            config.buffer.total_epochs * count // self.batch_size, 1)

    def _tokenized(self, pairs: list[records.Task], model):
        """Pairs of rows; a pair is left out whole when one of its texts is over the limits."""
        from workflows.prompts import load_tokenizer, prompt_tokens, response_tokens, task_texts

        limits = self.context.config.model
        tokenizer = load_tokenizer(model, limits)
        prompts = prompt_tokens(tokenizer, task_texts(tokenizer, pairs, self.context.config))
        chosen, rejected = (response_tokens(tokenizer, [getattr(pair, which) for pair in pairs])
                            for which in ("chosen", "rejected"))
        for pair, prompt, *responses in zip(pairs, prompts, chosen, rejected, strict=True):
            longest = max(len(response) for response in responses)
            if len(prompt) <= limits.max_prompt_tokens and longest <= limits.max_response_tokens:
                yield [Row(f"{pair.task_id}/{pair.row}/{which}", prompt + response, len(prompt), [1] * len(response))
                       for which, response in zip(("chosen", "rejected"), responses, strict=True)]

    def cut(self, step: int) -> list[Row]:
        chosen = tasks_of_step(len(self.rows) // 2, self.batch_size, step, self.context.config.seed)
        return [row for pair in chosen for row in self.rows[2 * pair : 2 * pair + 2]]

    def batch(self, cut: list[Row]) -> Batch:
        return Batch(cut)

    def publishes(self, step: int) -> bool:
        return False

    def finish(self, step: int, batch: Batch, logprobs: list[np.ndarray]) -> list[records.Trained]:
        """Pairs leave no table behind but `reference`."""
        return []
