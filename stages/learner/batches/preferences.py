"""Train batches of pairs (dpo, ipo, kto): a preferred and a rejected response to the same prompt."""

from pathlib import Path

from pipeline.job.context import Context
from pipeline.store import records
from pipeline.store.errors import DataError
from stages.learner.batch import Row
from stages.learner.batches.data_set import DataSet

RESPONSES = ("chosen", "rejected")


class Preferences(DataSet):
    """Pairs: row 2k is the chosen response of pair k, row 2k + 1 the rejected one."""

    split, what, unit = "preference", "pairs", 2
    advice = ", and name the columns of a chosen and a rejected response in its format.chosen_key and rejected_key."

    def tokenized(self, context: Context, model: Path, tasks: list[records.Task]) -> list[Row]:
        """Pairs with a text over the limits are left out. Raises DataError when all are."""
        from workflows.prompts import load_tokenizer, prompt_tokens, response_tokens, task_texts

        limits, rows = context.config.model, []
        tokenizer = load_tokenizer(model, limits)
        prompts = prompt_tokens(tokenizer, task_texts(tokenizer, tasks, context.config))
        chosen, rejected = (response_tokens(tokenizer, [getattr(pair, which) for pair in tasks])
                            for which in RESPONSES)
        for pair, prompt, *responses in zip(tasks, prompts, chosen, rejected, strict=True):
            if len(prompt) <= limits.max_prompt_tokens and max(map(len, responses)) <= limits.max_response_tokens:
                rows += [Row(f"{pair.task_id}/{pair.row}/{which}", prompt + response, len(prompt), [1] * len(response))
                         for which, response in zip(RESPONSES, responses, strict=True)]
        if not rows:
            raise DataError("every pair has a prompt or a response longer than model.max_prompt_tokens or "
                            "model.max_response_tokens; raise them.")
        return rows
