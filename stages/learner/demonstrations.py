"""Train batches from demonstrations (sft)."""

from pipeline.errors import DataError
from pipeline.process import Context
from pipeline.tasksets import read_buffer
from stages.learner.batches import GivenRows
from stages.learner.packing import Row


class Demonstrations(GivenRows):
    """Demonstrated responses (`split` sft), train_batch_size (else batch_size) to a step, every one once an epoch."""

    def __init__(self, context: Context, model):
        from workflows.demonstrations import last_responses, whole_conversations
        from workflows.prompts import load_tokenizer

        config = context.config
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
        kept = [
            Row(row.task_id, prompt + response, len(prompt), mask)
            for row, (prompt, response, mask) in zip(rows, made, strict=True)
            if len(prompt) <= limits.max_prompt_tokens and len(response) <= limits.max_response_tokens
        ]
        context.log.info("%d demonstrations, %d over the token limits left out", len(kept), len(rows) - len(kept))
        if not kept:
            prompt, response, _ = min(made, key=lambda layout: len(layout[0]) + len(layout[1]))
            raise DataError("every demonstration is longer than "
                            f"model.max_prompt_tokens={limits.max_prompt_tokens} or "
                            f"model.max_response_tokens={limits.max_response_tokens}; the shortest has {len(prompt)} "
                            f"and {len(response)} (of a whole conversation: all after the first prompt). Raise them.")
        super().__init__(context, kept)
