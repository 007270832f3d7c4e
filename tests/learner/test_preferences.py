"""Train batches of pairs."""

import pytest

from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.stages.learner.batches.preferences import Preferences
from ouroboros.stages.learner.record import trained_rows
from tests.configs import TINY
from tests.factories import row
from tests.golden.messages import refuses


@pytest.fixture
def preferences(tmp_path, context_of, tiny_model):
    """preferences([(question, chosen, rejected), ...], "key=value", ...)"""

    def make(pairs, *overrides):
        rows = [row(records.Task, task_id="same", row=i, split="preference", question=question, chosen=chosen,
                    rejected=rejected) for i, (question, chosen, rejected) in enumerate(pairs)]
        rows.append(row(records.Task, task_id="t", row=99, split="train", question="1"))
        tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, rows)
        context = context_of(tmp_path / "dpo", *TINY, "buffer.batch_size=2", *overrides, tasks=tmp_path / "curate")
        return Preferences(context, tiny_model)

    return make


def test_a_pair_is_two_rows_that_share_the_prompt(preferences):
    """One token per character, a colon after the prompt, an end after each response."""
    source = preferences([("1 2", "2-1", "1")], "buffer.batch_size=1")
    chosen, rejected = source.rows
    assert (chosen.id, rejected.id) == ("same/0/chosen", "same/0/rejected")
    assert chosen.tokens[:4] == rejected.tokens[:4]
    assert (chosen.prompt_length, chosen.mask, rejected.mask) == (4, [1] * 4, [1] * 2)
    assert chosen.tokens[-1] == rejected.tokens[-1] == 1  # <eos>
    assert source.syncs.publishes(1) is False


def test_a_batch_is_whole_pairs_and_an_epoch_all_of_them(preferences):
    source = preferences([(f"{i}", "1", "2") for i in range(6)], "buffer.total_steps=null", "buffer.total_epochs=2")
    assert source.total_steps == 6
    steps = [[r.id for r in source.with_advantages(source.cut(step)).rows] for step in range(1, 7)]
    for ids in steps:
        assert len(ids) == 4
        assert all(a.replace("chosen", "rejected") == b for a, b in zip(ids[::2], ids[1::2], strict=True))
    assert sorted(i for ids in steps[:3] for i in ids) == sorted(r.id for r in source.rows)
    assert trained_rows(source.cut(1), []) == []


def test_a_pair_with_one_text_over_the_limits_is_left_out_whole(preferences):
    """Limits 40 and 24 tokens, the colon and the end among them."""
    source = preferences([("1", "1" * 23, "1"), ("1", "1", "1" * 24), ("1" * 40, "1", "2"), ("1" * 39, "1", "2")])
    assert [r.id for r in source.rows] == [f"same/{i}/{which}" for i in (0, 3) for which in ("chosen", "rejected")]
    with refuses(DataError, "response"):
        preferences([("1", "1" * 24, "1")])


@pytest.mark.parametrize(("pairs", "words"), [
    ([("1", "1", "2")], ("buffer.batch_size=2", "1 short")), ([], ("(split preference)", "format.chosen_key"))])
def test_fewer_pairs_than_a_batch_are_refused(preferences, pairs, words):
    with refuses(DataError, *words):
        preferences(pairs)
