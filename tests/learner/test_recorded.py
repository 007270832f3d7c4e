"""Train batches from the experience of an earlier stage, over several passes."""

import pytest

from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.stages.learner.batches.recorded import Recorded
from tests.factories import row
from tests.golden.messages import refuses


@pytest.fixture
def recorded(tmp_path, context_of):
    """recorded("key=value", ...): three explorer steps of four rows, two groups each; the first of a group solves."""
    explored = tmp_path / "look"
    for step in (1, 2, 3):
        rows = [row(records.Experience, experience_id=f"look/{step}/{i}", step=step, slot=i,
                    group_id=f"{step}/{i // 2}", prompt_tokens=[7], response_tokens=[9], rollout_logprobs=[-0.5],
                    action_mask=[1], reward=float(i % 2 == 0), accuracy=float(i % 2 == 0), status="ok",
                    weights_version=0)
                for i in range(4)]
        tables.write(tables.step_file(explored, "experience", step), records.Experience, rows)
        tables.write(tables.step_file(explored, "rollouts", step), records.Rollout,
                     [row(records.Rollout, step=step, attempts=4, rows=4, rollout_seconds=9.0)])

    def make(*overrides):
        context = context_of(tmp_path / "learn", *overrides, experience=explored)
        del context.config.buffer.trainer_input  # which such a stage is not handed
        return Recorded(context)

    return make


def batch(source, step):
    return source.with_advantages(source.cut(step))


def ids(source, step):
    return [r.id.removeprefix("look/") for r in batch(source, step).rows]


def test_one_explorer_step_is_a_batch_and_after_the_last_comes_the_first(recorded):
    source = recorded("buffer.total_steps=5")
    assert source.total_steps == 5
    assert ids(source, 1) == ["1/0", "1/1", "1/2", "1/3"]
    assert ids(source, 3)[0] == "3/0"
    assert ids(source, 4) == ids(source, 1)
    assert {batch(source, 5).staleness(r) for r in batch(source, 5).rows} == {4}  # version 0, trained at step 5
    advantages = [r.columns["advantages"] for r in batch(source, 4).rows]
    assert advantages == pytest.approx([0.707106, -0.707106] * 2, abs=2e-6)


def test_a_batch_over_the_end_of_a_pass_takes_up_the_beginning_and_may_be_part_of_a_step(recorded):
    """Batches of two steps out of three: 1 2, 3 1, 2 3."""
    source = recorded("buffer.train_batch_size=8", "buffer.total_steps=3")
    assert [[name[0] for name in ids(source, t)[::4]] for t in (1, 2, 3)] == [["1", "2"], ["3", "1"], ["2", "3"]]
    source = recorded("buffer.train_batch_size=2", "buffer.total_steps=8")
    assert ids(source, 2) == ["1/2", "1/3"]
    assert ids(source, 8) == ["1/2", "1/3"]  # six batches a pass


def test_passes_are_counted_in_epochs(recorded):
    """12 rows, twice, 8 to a batch."""
    assert recorded("buffer.total_steps=null", "buffer.total_epochs=2", "buffer.train_batch_size=8").total_steps == 3
    assert recorded("buffer.total_steps=null").total_steps == 3


def test_no_weights_are_handed_over_and_nothing_is_paid_twice(recorded):
    source = recorded("buffer.total_steps=3")
    assert [source.syncs.publishes(step) for step in (0, 1)] == [False, False]
    assert batch(source, 1).explored == []


def test_a_batch_larger_than_all_that_was_explored_is_refused(recorded):
    with refuses(DataError, "train_batch_size=16", "12 experiences"):
        recorded("buffer.train_batch_size=16")


def test_what_ouro_serve_recorded_is_trained_on(tmp_path, context_of):
    """Two steps of two rewarded attempts; one of them has two calls in one row, and one has no reward."""
    from ouroboros.stages.serving.attempts import Attempt, Feedback, Reply, Source
    from ouroboros.stages.serving.recording import Recording

    recording = Recording(tmp_path / "rec", Source("rec", "w", "c", "k", "e"), lambda ids, skip: "", 2, 0.0, True)
    for number in range(5):
        attempt = Attempt(f"a{number}", None)
        replies = [([7], [8], [-0.5]), ([7, 8, 9], [10], [-0.25])] if number == 0 else [([7], [8], [-0.5])]
        for prompt, tokens, logprobs in replies:
            recording.replied(attempt, Reply("chat.completions", prompt, tokens, logprobs, "stop", False, None, 1.0,
                                             1.0, -1, number, 0.1, 1.0))
        if number != 2:
            recording.rewarded(Feedback({"accuracy": float(number % 2)}, ids=(attempt.id,), group="g"))
    recording.close()
    context = context_of(tmp_path / "learn", "buffer.total_steps=2", experience=tmp_path / "rec")
    del context.config.buffer.trainer_input
    source = Recorded(context)
    made = batch(source, 1)
    assert [row.id for row in made.rows] == ["rec/a0/0", "rec/a1/0"]
    assert [(row.tokens, row.mask) for row in made.rows] == [([7, 8, 9, 10], [1, 0, 1]), ([7, 8], [1])]
    assert [row.id for row in batch(source, 2).rows] == ["rec/a3/0", "rec/a4/0"]
    advantages = [row.columns["advantages"] for row in made.rows]
    assert [one[0] if isinstance(one, list) else one for one in advantages] == pytest.approx(
        [-0.707106, 0.707106], abs=2e-6)
