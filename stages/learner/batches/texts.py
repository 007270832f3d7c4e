"""Train batches from plain text (cpt): continued pre-training, loss on all tokens but the first."""

from pathlib import Path

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.settings.config import longest_sequence
from ouroboros.pipeline.store import records
from ouroboros.stages.learner.batches.data_set import DataSet
from ouroboros.stages.learner.engine.batch import Row


class Texts(DataSet):
    """Pieces of plain texts."""

    split, what = "text", "pieces of plain text"
    advice = " to files of it, and format.prompt_key to its column."

    def tokenized(self, context: Context, model: Path, tasks: list[records.Task]) -> list[Row]:
        from ouroboros.workflows.protocol.prompts import load_tokenizer

        config = context.config.model
        return in_pieces(load_tokenizer(model, config), tasks, longest_sequence(config))


def in_pieces(tokenizer, texts: list[records.Task], longest: int) -> list[Row]:
    """Each text, with special and end tokens, cut into pieces of at most `longest` tokens (>= 2).

    A piece begins with the last token of the piece before it, so that every token but a text's first is trained on
    once. Id: task_id/row/piece.
    """
    ids = tokenizer([text.question for text in texts])["input_ids"]
    rows = []
    for text, tokens in zip(texts, ids, strict=True):
        tokens = tokens if tokens[-1:] == [tokenizer.eos_token_id] else [*tokens, tokenizer.eos_token_id]
        for piece, begin in enumerate(range(0, len(tokens) - 1, longest - 1)):
            part = tokens[begin : begin + longest]
            rows.append(Row(f"{text.task_id}/{text.row}/{piece}", part, 1, [1] * (len(part) - 1)))
    return rows
