"""Train batches from plain text (cpt): continued pre-training, loss on all tokens but the first."""

from pathlib import Path

from pipeline.job.context import Context
from pipeline.job.tasksets import read_buffer
from pipeline.settings.config import longest_sequence
from pipeline.settings.data import SHOWN
from pipeline.store import records
from pipeline.store.errors import DataError
from stages.learner.batches.choose import GivenRows
from stages.learner.engine.packing import Row


class Texts(GivenRows):
    """Pieces of plain texts (`split` text), train_batch_size (else batch_size) per step, once per epoch."""

    what = "pieces of text"

    def __init__(self, context: Context, model: Path):
        from workflows.prompts import load_tokenizer

        config = context.config
        source = config.buffer.trainer_input.experience_buffer
        texts = read_buffer(context.inputs["tasks"], source.name, source.path, "text")
        if not texts:
            raise DataError(f"{context.inputs['tasks']}/tasks.parquet has no plain text (split text). Set {SHOWN}.path "
                            "to files of it, and format.prompt_key to its column.")
        rows = in_pieces(load_tokenizer(model, config.model), texts, longest_sequence(config.model))
        context.log.info("%d texts in %d pieces", len(texts), len(rows))
        super().__init__(context, rows)


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
