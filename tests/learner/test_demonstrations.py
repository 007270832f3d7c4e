"""Train batches from demonstrations."""

import json

import pytest

from ouroboros.pipeline.job.load import Load
from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.stages.learner.actor import Result
from ouroboros.stages.learner.batches.demonstrations import Demonstrations
from ouroboros.stages.learner.record import Seconds, step_record, trained_rows
from tests.configs import TINY
from tests.factories import row
from tests.golden.messages import refuses


def batch_of(source, step):
    return source.with_advantages(source.cut(step))


@pytest.fixture
def demonstrations(tmp_path, context_of, tiny_model):
    """demonstrations([(question, solution), ...], "key=value", ...)"""

    def make(pairs, *overrides):
        rows = [row(records.Task, task_id=f"t{i}", row=i, split="sft" if solution else "train", question=question,
                    solution=solution) for i, (question, solution) in enumerate(pairs)]
        tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, rows)
        context = context_of(tmp_path / "sft", *TINY, "buffer.batch_size=2", *overrides, tasks=tmp_path / "curate")
        return Demonstrations(context, tiny_model)

    return make


def test_demonstrations_become_rows_that_end_with_the_end_token(demonstrations, tiny_model):
    """One token per character: `1 2:` is 4, `2-1` is 3 and the end."""
    source = demonstrations([("1 2", "2-1"), ("no demonstration", None)], "buffer.batch_size=1")
    (only,) = source.rows
    assert (only.prompt_length, len(only.tokens), only.mask) == (4, 8, [1] * 4)
    assert only.tokens[-1] == 1  # <eos>
    assert source.syncs.publishes(1) is False


def test_demonstrations_over_the_limits_are_left_out(demonstrations):
    """Limits 40 and 24: the end token counts, so 24 characters are one too many; the prompt's colon counts too."""
    source = demonstrations([("1", "1" * 23), ("1", "1" * 24), ("1" * 39, "1"), ("1" * 40, "1")])
    assert [r.id for r in source.rows] == ["t0", "t2"]
    with refuses(DataError, "demonstration"):
        demonstrations([("1", "1" * 24)])


def test_every_demonstration_comes_once_an_epoch(demonstrations):
    source = demonstrations([(f"{i}", "1") for i in range(6)], "buffer.total_steps=null", "buffer.total_epochs=2")
    assert source.total_steps == 6
    seen = [r.id for step in range(1, 7) for r in batch_of(source, step).rows]
    assert sorted(seen[:6]) == sorted(seen[6:]) == [f"t{i}" for i in range(6)]
    assert batch_of(source, 4).rows == batch_of(source, 4).rows


def test_a_batch_of_more_than_there_are_is_refused(demonstrations):
    """One of three is over the limits."""
    given = [("1", "1"), ("2", "2"), ("1", "1" * 24)]
    assert demonstrations(given, "buffer.batch_size=3", "buffer.train_batch_size=2").batch_size == 2
    with refuses(DataError, "buffer.train_batch_size=3:", "2: 1", "most 2"):
        demonstrations(given, "buffer.train_batch_size=3")


def test_no_demonstrations_at_all_are_named(demonstrations):
    with refuses(DataError, "(split sft)"):
        demonstrations([("1", None)])


def test_a_step_of_demonstrations_leaves_what_has_no_meaning_null(demonstrations):
    source = demonstrations([("1", "1"), ("2", "2")])
    batch = batch_of(source, 1)
    assert trained_rows(batch, []) == []
    made = step_record("sft-1", batch, Result(1.0, 2.0, 0.1, None, {"entropy": 0.5}, 8, []), None, None,
                       Seconds(1.0, None, 0.0, 0.0, 1.0, None), Load(host_load=0.5))
    assert (made.loss, made.trained_rows, made.entropy, made.trained_tokens) == (1.0, 2, 0.5, 8)
    assert (made.reward, made.kl, made.rollout_seconds, made.mismatch_mean) == (None, None, None, None)
    tables.to_arrow([made], records.Step)


def test_demonstrations_of_a_file_of_their_own(tmp_path, context_of, tiny_model):
    """`Hi:` `Hey` end, `Bye:` `Ciao` end: a colon before each response and the end token (one token, a dot here)."""
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hey"}]
    rows = [row(records.Task, task_id="mine", split="sft", taskset="mine", question="Bye", solution="Ciao",
                context=talk), row(records.Task, task_id="pool", split="sft", question="1", solution="2"),
            row(records.Task, task_id="pair", split="preference", taskset="mine", question="1", chosen="2",
                rejected="3")]
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, rows)
    buffer = "buffer.trainer_input.experience_buffer"

    def source(*overrides):
        given = (*TINY, f"{buffer}.path=mine.jsonl", f"{buffer}.name=mine", "buffer.batch_size=1", *overrides)
        return Demonstrations(context_of(tmp_path / "sft", *given, tasks=tmp_path / "curate"), tiny_model)

    (last,) = source().rows
    assert (last.id, last.prompt_length, last.mask) == ("mine", len("Hi:Hey.Bye:"), [1] * 5)
    (all_,) = source(f"{buffer}.format.enable_concatenated_multi_turn=true").rows
    assert (all_.prompt_length, all_.mask) == (len("Hi:"), [1] * 4 + [0] * 4 + [1] * 5)
    with refuses(DataError, "(split sft)", "buffer.trainer_input.exp"):
        source(f"{buffer}.name=nobody")

    rows[0].taskset = None  # of the pool, as those of a generator of conversations
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, rows[:1])
    (generated,) = source(f"{buffer}.path=null", f"{buffer}.format.enable_concatenated_multi_turn=true").rows
    assert (generated.prompt_length, generated.mask) == (all_.prompt_length, all_.mask)


def with_calls(count, of):
    """`of` demonstrations, the first `count` with a call that the template of the tiny model does not read."""
    asked = [{"role": "user", "content": "1+2?"}]
    call = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
    lost = json.dumps({"messages": [*asked, {"role": "assistant", "content": "", "tool_calls": [call]}]})
    return [row(records.Task, task_id=f"t{i}", row=i, split="sft", question="1+2?", solution="3",
                messages=lost if i < count else None) for i in range(of)]


@pytest.mark.parametrize(("count", "is_allowed"), [(0, True), (1, True), (2, False)])
def test_what_the_chat_template_does_not_read_is_rejected_up_to_a_share(tmp_path, context_of, tiny_model, count,
                                                                        is_allowed):
    """A tenth of ten may be lost."""
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, with_calls(count, 10))
    context = context_of(tmp_path / "sft", *TINY, "buffer.batch_size=2", tasks=tmp_path / "curate")
    if is_allowed:
        source = Demonstrations(context, tiny_model)
        assert [one.id for one in source.rows] == [f"t{i}" for i in range(count, 10)]
        assert [(one.row, one.operator) for one in source.rejected] == [(i, "chat_template") for i in range(count)]
        assert all("turn 2: tool_calls" in one.reason for one in source.rejected)
        return
    with refuses(DataError, "2 of 10", "2: tool_calls", "Allowed 10%"):
        Demonstrations(context, tiny_model)
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, with_calls(10, 10))
    context.config.buffer.max_rejected_ratio = 1.0
    with refuses(DataError, "10 of 10"):  # whatever share is allowed
        Demonstrations(context, tiny_model)
