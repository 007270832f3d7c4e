"""Continued pre-training: texts in pieces, a loss on every token with one before it."""


from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.stages.learner.batches.texts import Texts, in_pieces
from ouroboros.stages.learner.objective import Objective
from tests.configs import TINY
from tests.factories import row
from tests.golden.messages import refuses

CPT = (*TINY, "algorithm.algorithm_type=cpt", "algorithm.advantage_fn=null", "algorithm.policy_loss_fn=null",
       "buffer.trainer_input.experience_buffer.path=texts.jsonl", "buffer.batch_size=2", "buffer.total_steps=null",
       "buffer.total_epochs=2")


class Letters:
    """A tokenizer of one letter a token; 0 ends."""

    eos_token_id = 0

    def __call__(self, texts):
        return {"input_ids": [[ord(letter) for letter in text] for text in texts]}


def text(number, words):
    return row(records.Task, task_id=f"t{number}", row=number, split="text", question=words,
               taskset="experience_buffer")


def test_a_text_is_cut_so_that_every_token_but_the_first_is_learnt_once():
    """abcde and the end are six tokens: pieces of at most three, each led by the last token of the one before."""
    rows = in_pieces(Letters(), [text(0, "abcde"), text(1, "x")], 3)
    assert [r.tokens for r in rows] == [[97, 98, 99], [99, 100, 101], [101, 0], [120, 0]]
    assert [(r.id, r.prompt_length, r.mask) for r in rows] == [
        ("t0/0/0", 1, [1, 1]), ("t0/0/1", 1, [1, 1]), ("t0/0/2", 1, [1]), ("t1/1/0", 1, [1])]


def test_a_stage_reads_its_texts(tmp_path, context_of, tiny_model):
    tables.write(tmp_path / "tasks.parquet", records.Task, [text(i, f"{i} + 1") for i in range(4)])
    context = context_of(tmp_path / "cpt", *CPT, tasks=tmp_path)
    source = Texts(context, tiny_model)
    assert source.total_steps == 4  # four texts twice, two to a step
    assert sorted(r.id for step in (1, 2) for r in source.cut(step).rows) == [f"t{i}/{i}/0" for i in range(4)]
    assert Objective(context.config).algorithm.name == "sft"


def test_no_text_is_an_error_that_says_what_to_set(tmp_path, context_of, tiny_model):
    tables.write(tmp_path / "tasks.parquet", records.Task, [row(records.Task, task_id="t", split="sft", solution="1")])
    with refuses(DataError, "pieces", "experience_buffer.path", "format.prompt_key"):
        Texts(context_of(tmp_path / "cpt", *CPT, tasks=tmp_path), tiny_model)
