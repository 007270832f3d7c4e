"""Train batches of pairs (dpo, ipo, kto, orpo, simpo, cpo): a preferred and a rejected response to the same prompt."""

from pathlib import Path

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.store import records
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.pictures import named
from ouroboros.stages.learner.batches.data_set import DataSet, rejected_rows
from ouroboros.stages.learner.engine.batch import Row

RESPONSES = ("chosen", "rejected")


class Preferences(DataSet):
    """Pairs: row 2k is the chosen response of pair k, row 2k + 1 the rejected one."""

    split, what, unit = "preference", "pairs", 2
    advice = ", and name the columns of a chosen and a rejected response in its format.chosen_key and rejected_key."

    def tokenized(self, context: Context, model: Path, tasks: list[records.Task]) -> list[Row]:
        """Pairs with a text over the limits are left out. Raises DataError when all are."""
        from ouroboros.workflows.demonstrations import pairs
        from ouroboros.workflows.protocol.prompts import load_tokenizer

        limits, rows = context.config.model, []
        tasks = list(tasks)
        shown = [named(task.pictures, context.inputs["tasks"]) for task in tasks]
        made = pairs(load_tokenizer(model, limits), tasks, context.config, shown, context.activity.alive)
        self.rejected = rejected_rows(context, tasks, made, context.config.buffer.trainer_input.experience_buffer.name)
        for pair, both, pictures in zip(tasks, made, shown, strict=True):
            if not isinstance(both, str) and all(len(prompt) <= limits.max_prompt_tokens and
                                                 len(response) <= limits.max_response_tokens
                                                 for prompt, response, _ in both):
                rows += [Row(f"{pair.task_id}/{pair.row}/{which}", prompt + response, len(prompt), mask,
                             pictures=pictures)
                         for which, (prompt, response, mask) in zip(RESPONSES, both, strict=True)]
        if not rows:
            raise DataError("every pair has a prompt or a response longer than model.max_prompt_tokens or "
                            "model.max_response_tokens; raise them.")
        return rows
