"""Train batches: cut from the experience table by hand-made steps, and from demonstrations."""

import math

import numpy as np
import pytest

from pipeline import records, tables
from pipeline.errors import ConfigError, DataError, StageError
from stages.learner.batches import Demonstrations, Rollouts
from stages.learner.packing import Row
from stages.learner.zero import Result
from tests.configs import TINY
from tests.factories import row

# Two tasks twice an explorer step: four rows. One train batch a step, on-policy, unless a test says otherwise.
SMALL = ("buffer.batch_size=2", "algorithm.repeat_times=2", "buffer.total_steps=4", "synchronizer.sync_offset=0",
         "synchronizer.sync_interval=1", "synchronizer.sync_timeout=0.01")


@pytest.fixture
def stage(tmp_path, context_of):
    """stage("key=value", ...): the context of an rft stage with three train tasks."""
    tasks = [row(records.Task, task_id=f"t{i}", row=i, split="test" if i == 3 else "train") for i in range(4)]
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, tasks)
    return lambda *overrides: context_of(tmp_path / "o'rft [1]", *SMALL, *overrides, tasks=tmp_path / "curate")


def explore(context, step, rewards, version=None):
    """Writes an explorer step of rows with these rewards, None = failed; row i answers i + 1 tokens."""
    version = step - 1 if version is None else version
    made = [row(records.Experience, experience_id=f"{step}/{i}", step=step, slot=i, group_id=f"{step}/{i // 2}",
                prompt_tokens=[7, 8], response_tokens=[9] * (i + 1), rollout_logprobs=[-0.5] * (i + 1),
                action_mask=[1] * (i + 1), reward=reward, accuracy=None if reward is None else float(reward >= 1),
                status="reward_failed" if reward is None else "ok", weights_version=version)
            for i, reward in enumerate(rewards)]
    tables.write(tables.step_file(context.directory, "experience", step), records.Experience, made)
    rollout = row(records.Rollout, step=step, weights_version=version, rollout_seconds=step / 10, tokens=10, rows=4)
    tables.write(tables.step_file(context.directory, "rollouts", step), records.Rollout, [rollout])


def test_a_batch_is_a_step_with_advantages_and_facts(stage):
    """Groups (1, 0) and (1, 1): std of the first sqrt(1/2), so +-0.707107; the second teaches nothing."""
    context = stage()
    explore(context, 1, [1.0, 0.0, 1.0, 1.0])
    batch = Rollouts(context).batch(1)
    assert [r.id for r in batch.rows] == ["1/0", "1/1", "1/2", "1/3"]
    assert [r.advantage for r in batch.rows] == pytest.approx([0.707106, -0.707106, 0.0, 0.0], abs=2e-6)
    assert batch.rows[2] == Row("1/2", [7, 8, 9, 9, 9], 2, [1, 1, 1], batch.rows[2].advantage, [-0.5] * 3)
    assert batch.staleness == [0, 0, 0, 0]
    facts = batch.facts
    assert (facts["reward"], facts["solve_rate"]) == (0.75, 0.75)
    assert (facts["zero_variance_groups"], facts["failed_rows"]) == (1, 0)
    assert (facts["response_tokens_mean"], facts["rollout_tokens"], facts["rollout_seconds"]) == (2.5, 10, 0.1)


def test_failed_rows_are_counted_and_not_trained_on_and_leave_their_group(stage):
    """The second group has one row left: no one to compare it with."""
    context = stage()
    explore(context, 1, [1.0, 0.0, None, 1.0])
    batch = Rollouts(context).batch(1)
    assert [r.id for r in batch.rows] == ["1/0", "1/1", "1/3"]
    assert batch.rows[2].advantage == 0.0
    assert (batch.facts["failed_rows"], batch.facts["zero_variance_groups"]) == (1, 1)


def test_a_step_without_a_usable_row_says_so(stage):
    context = stage()
    explore(context, 1, [None] * 4)
    with pytest.raises(StageError, match="trainer step 1 has no usable row: all 4 of explorer steps 1 to 1 failed"):
        Rollouts(context).batch(1)


def test_half_a_step_is_a_batch_and_groups_are_still_whole(stage):
    """train_batch_size 1: trainer step 3 is the third row; its advantage compares it with the fourth."""
    context = stage("buffer.train_batch_size=1", "buffer.total_steps=8")
    explore(context, 1, [1.0, 1.0, 0.0, 1.0])
    source = Rollouts(context)
    assert [r.id for r in source.batch(3).rows] == ["1/2"]
    assert source.batch(3).rows[0].advantage == pytest.approx(-0.707106, abs=2e-6)
    assert source.batch(4).staleness == [3]  # version 0 trained at step 4
    assert source.batch(1).facts["rollout_tokens"] == 10  # the first to use an explorer step pays for it
    assert "rollout_tokens" not in source.batch(3).facts


def test_two_steps_are_a_batch_in_order(stage):
    context = stage("buffer.train_batch_size=8")
    explore(context, 1, [1.0, 0.0, 1.0, 1.0], version=0)
    explore(context, 2, [0.0, None, 0.0, 1.0], version=0)
    batch = Rollouts(context).batch(1)
    assert [r.id for r in batch.rows] == ["1/0", "1/1", "1/2", "1/3", "2/0", "2/2", "2/3"]
    assert batch.rows[5].advantage == pytest.approx(-0.707106, abs=2e-6)
    assert batch.facts["failed_rows"] == 1
    assert batch.facts["rollout_seconds"] == pytest.approx(0.1 + 0.2)  # both explorer steps are paid for here
    assert batch.facts["rollout_tokens"] == 20


def test_what_the_explorer_has_not_made_is_waited_for(stage):
    with pytest.raises(StageError, match=r"for explorer step 1: .*rollouts/step=000001\.parquet.*explorer\.log"):
        Rollouts(stage()).batch(1)


def test_colocated_the_trainer_waits_until_the_explorer_can_do_no_more(stage):
    """One step off: with version 0 the explorer makes steps 1 and 2, so step 1 alone does not free the device."""
    context = stage("mode=colocate", "synchronizer.sync_offset=1")
    explore(context, 1, [1.0, 0.0, 1.0, 1.0], version=0)
    with pytest.raises(StageError, match="for explorer step 2"):
        Rollouts(context).batch(1)
    explore(context, 2, [1.0, 0.0, 1.0, 1.0], version=0)
    assert len(Rollouts(context).batch(1).rows) == 4
    with pytest.raises(StageError, match="for explorer step 3"):
        Rollouts(context).batch(2)


def test_what_a_step_made_of_its_rows_is_said_and_the_gap_is_measured_on_fresh_rows(stage):
    """Rollout log-probs -0.5. Row 0 (fresh) was scored -0.75, row 1 (one step old) is not compared."""
    context = stage()
    explore(context, 1, [1.0, 0.0, 1.0, 1.0], version=0)
    source = Rollouts(context)
    batch = source.batch(1)
    batch.staleness = [0, 1, 1, 0]
    scored = [np.full(i + 1, s, np.float32) for i, s in enumerate((-0.75, -9.0, -9.0, -0.5))]
    made = source.finish(1, batch, scored)
    assert batch.facts["mismatch_max"] == pytest.approx(0.25)
    assert batch.facts["mismatch_mean"] == pytest.approx(0.25 / 5)  # 1 token of row 0, 4 of row 3
    assert [(r.experience_id, r.train_step, r.staleness) for r in made] == [
        ("1/0", 1, 0), ("1/1", 1, 1), ("1/2", 1, 1), ("1/3", 1, 0)]
    assert tables.to_arrow(made, records.Trained)["train_logprobs"].to_pylist()[1] == [-9.0, -9.0]
    result = Result(1.0, 2.0, {"entropy": 0.5, "kl": 0.1, "clip_fraction": 0.2}, 18, {})
    step = records.Step(**source.step_row(1, batch, result) | {
        "lr": 0.1, "train_seconds": 1.0, "train_other_seconds": 0.0, "train_wait_seconds": 0.0, "seconds": 1.0})
    assert (step.loss, step.grad_norm, step.kl, step.trained_rows, step.trained_tokens) == (1.0, 2.0, 0.1, 4, 18)
    tables.to_arrow([step], records.Step)  # every column has a value that may be there


def test_without_fresh_rows_there_is_no_gap(stage):
    context = stage()
    explore(context, 1, [1.0, 0.0, 1.0, 1.0], version=0)
    source = Rollouts(context)
    batch = source.batch(1)
    batch.staleness = [1] * 4
    source.finish(1, batch, [np.zeros(i + 1, np.float32) for i in range(4)])
    assert batch.facts["mismatch_mean"] is None


def test_the_stage_publishes_and_ends_as_the_schedule_says(stage):
    """3 tasks, one epoch, 2 rows each: one batch of 4."""
    assert Rollouts(stage()).total_steps == 4
    assert [Rollouts(stage()).publishes(t) for t in (1, 2, 3, 4)] == [True, True, True, False]
    assert Rollouts(stage("buffer.total_steps=null")).total_steps == 1
    assert Rollouts(stage("buffer.total_steps=null", "buffer.explorer_input.taskset.limit=2",
                          "buffer.total_epochs=5")).total_steps == 5


@pytest.mark.parametrize(("override", "words"), [
    ("algorithm.advantage_fn=grop", r"unknown algorithm\.advantage_fn 'grop'. Did you mean 'grpo'\?"),
    ("algorithm.advantage_fn_args.epsilom=1", r"'grpo' has no argument 'epsilom'. Did you mean 'epsilon'\?"),
    ("algorithm.advantage_fn_args.epsilon=0", "needed a number greater than 0")])
def test_an_advantage_that_does_not_exist_is_refused(stage, override, words):
    with pytest.raises(ConfigError, match=words):
        Rollouts(stage(override))


def test_the_probe_is_the_head_of_the_longest_row(stage):
    context = stage()
    explore(context, 1, [1.0, 0.0, 1.0, 1.0])
    batch = Rollouts(context).batch(1)
    assert batch.longest_row(256) == [7, 8, 9, 9, 9]  # of six: the engine must have room for one token more
    assert batch.longest_row(3) == [7, 8, 9]


# --------------------------------------------------------------------------------------------------- demonstrations


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
    source = demonstrations([("1 2", "2-1"), ("no demonstration", None)])
    (only,) = source.rows
    assert (only.prompt_length, len(only.tokens), only.mask) == (4, 8, [1] * 4)
    assert only.tokens[-1] == 1  # <eos>
    assert source.publishes(1) is False


def test_demonstrations_over_the_limits_are_left_out(demonstrations):
    """Limits 40 and 24: the end token counts, so 24 characters are one too many; the prompt's colon counts too."""
    source = demonstrations([("1", "1" * 23), ("1", "1" * 24), ("1" * 39, "1"), ("1" * 40, "1")])
    assert [r.id for r in source.rows] == ["t0", "t2"]
    with pytest.raises(DataError, match="every demonstration is longer than"):
        demonstrations([("1", "1" * 24)])


def test_every_demonstration_comes_once_an_epoch(demonstrations):
    source = demonstrations([(f"{i}", "1") for i in range(6)], "buffer.total_steps=null", "buffer.total_epochs=2")
    assert source.total_steps == 6
    seen = [r.id for step in range(1, 7) for r in source.batch(step).rows]
    assert sorted(seen[:6]) == sorted(seen[6:]) == [f"t{i}" for i in range(6)]
    assert source.batch(4).rows == source.batch(4).rows


def test_no_demonstrations_at_all_are_named(demonstrations):
    with pytest.raises(DataError, match=r"has no demonstrations \(split sft\).*leave the sft stage out"):
        demonstrations([("1", None)])


def test_demonstrations_of_a_file_of_their_own(tmp_path, context_of, tiny_model):
    """`Hi:` `Hey` end, `Bye:` `Ciao` end: a colon before each response and the end token (one token, a dot here)."""
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hey"}]
    rows = [row(records.Task, task_id="mine", split="sft", taskset="mine", question="Bye", solution="Ciao",
                context=talk),
            row(records.Task, task_id="pool", split="sft", question="1", solution="2"),
            row(records.Task, task_id="pair", split="preference", taskset="mine", question="1", chosen="2",
                rejected="3")]
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, rows)
    buffer = "buffer.trainer_input.experience_buffer"

    def source(*overrides):
        given = (*TINY, f"{buffer}.path=mine.jsonl", f"{buffer}.name=mine", "buffer.batch_size=3", *overrides)
        return Demonstrations(context_of(tmp_path / "sft", *given, tasks=tmp_path / "curate"), tiny_model)

    (last,) = source().rows
    assert (last.id, last.prompt_length, last.mask) == ("mine", len("Hi:Hey.Bye:"), [1] * 5)
    (all_,) = source(f"{buffer}.format.enable_concatenated_multi_turn=true").rows
    assert (all_.prompt_length, all_.mask) == (len("Hi:"), [1] * 4 + [0] * 4 + [1] * 5)
    assert len(source("buffer.train_batch_size=5").batch(1).rows) == 5
    with pytest.raises(DataError, match=r"no demonstrations \(split sft\)\. Set buffer\.trainer_input\.exp"):
        source(f"{buffer}.name=nobody")


def test_a_step_of_demonstrations_leaves_what_has_no_meaning_null(demonstrations):
    source = demonstrations([("1", "1"), ("2", "2")])
    batch = source.batch(1)
    assert source.finish(1, batch, []) == []
    made = source.step_row(1, batch, Result(1.0, 2.0, {"entropy": 0.5}, 8, {}))
    assert (made["loss"], made["trained_rows"], made["entropy"]) == (1.0, 2, 0.5)
    assert (made["reward"], made["kl"], made["rollout_seconds"]) == (None, None, None)
    assert math.isfinite(made["trained_tokens"])
