"""Train batches of pairs (dpo, ipo, kto): a preferred and a rejected response to the same prompt."""

from pipeline.job.context import Context
from pipeline.job.tasksets import read_buffer
from pipeline.store import records
from pipeline.store.errors import DataError
from stages.learner.batches.choose import GivenRows
from stages.learner.engine.packing import Row


class Preferences(GivenRows):
    """Pairs (`split` preference), train_batch_size (else batch_size) per step, once per epoch.

    rows: row 2k is the chosen response of pair k, row 2k + 1 the rejected one.
    """

    unit, what = 2, "pairs"

    def __init__(self, context: Context, model):
        source = context.config.buffer.trainer_input.experience_buffer
        pairs = read_buffer(context.inputs["tasks"], source.name, source.path, "preference")
        if not pairs:
            raise DataError(f"{context.inputs['tasks']}/tasks.parquet has no pairs (split preference): rows with a "
                            "chosen and a rejected response. Set buffer.trainer_input.experience_buffer.path, and name "
                            "both columns in its format.chosen_key and format.rejected_key.")
        rows = [row for pair in _tokenized(context, pairs, model) for row in pair]
        count = len(rows) // self.unit
        context.log.info("%d pairs, %d over the token limits left out", count, len(pairs) - count)
        if not rows:
            raise DataError("every pair has a prompt or a response longer than model.max_prompt_tokens or "
                            "model.max_response_tokens; raise them.")
        super().__init__(context, rows)


def _tokenized(context: Context, pairs: list[records.Task], model):
    """Pairs of rows; pairs with a text over the limits are dropped."""
    from workflows.prompts import load_tokenizer, prompt_tokens, response_tokens, task_texts

    limits = context.config.model
    tokenizer = load_tokenizer(model, limits)
    prompts = prompt_tokens(tokenizer, task_texts(tokenizer, pairs, context.config))
    chosen, rejected = (response_tokens(tokenizer, [getattr(pair, which) for pair in pairs])
                        for which in ("chosen", "rejected"))
    for pair, prompt, *responses in zip(pairs, prompts, chosen, rejected, strict=True):
        longest = max(len(response) for response in responses)
        if len(prompt) <= limits.max_prompt_tokens and longest <= limits.max_response_tokens:
            yield [Row(f"{pair.task_id}/{pair.row}/{which}", prompt + response, len(prompt), [1] * len(response))
                   for which, response in zip(("chosen", "rejected"), responses, strict=True)]
