"""Train batches with groups that were trained on before, drawn by hand-made steps.

Two tasks twice an explorer step are two groups of two; a batch of six rows has one group again.
"""

import pytest

from ouroboros.operators import priority
from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.stages.learner.batches.rollouts import Rollouts
from ouroboros.stages.learner.record import trained_rows
from ouroboros.stages.learner.replay import Replay
from tests.factories import row
from tests.golden.messages import refuses
from tests.learner.test_rollouts import SMALL, batch_of, explore

REPLAY = "buffer.trainer_input.experience_buffer.replay_buffer"
ON = (f"{REPLAY}.enable=true", f"{REPLAY}.replay_ratio=0.34", "buffer.train_batch_size=6", "buffer.total_steps=6")


@pytest.fixture
def stage(tmp_path, context_of):
    tasks = [row(records.Task, task_id=f"t{i}", row=i, split="train") for i in range(3)]
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, tasks)

    def make(*overrides, steps=6):
        context = context_of(tmp_path / "rft", *SMALL, *ON, *overrides, tasks=tmp_path / "curate")
        for step in range(1, steps + 1):
            explore(context, step, [1.0, 0.0, 1.0, 1.0])
        return context

    return make


def uses(batch):
    return [(r.origin.use_count, r.origin.priority) for r in batch.rows]


def again(source, step):
    """Groups that a step replays: the rows of its batch from earlier explorer steps."""
    return sorted({r.id for r in batch_of(source, step).rows if not r.id.startswith(f"{step}/")})


def test_the_first_step_has_nothing_to_replay_and_the_next_the_newest_and_least_used(stage):
    """linear_decay 2: priority version - 2 uses, ties by position. Step s makes groups s/0 (rows s/0, s/1) and s/1.

    Step 2: 1/0 and 1/1 have 0 - 2 = -2, so 1/0, whose use it is the second. Step 3: 1/1 -2, 2/0 and 2/1 1 - 2 = -1,
    1/0 -4: 2/0. Step 4: 3/0 2 - 2 = 0. So the newest always win, a group once each.
    """
    source = Rollouts(stage())
    assert [again(source, step) for step in (1, 2, 3, 4)] == [[], ["1/0", "1/1"], ["2/0", "2/1"], ["3/0", "3/1"]]
    batch = batch_of(source, 4)
    assert len(batch.rows) == 6
    assert batch.metrics.replayed_rows == 2
    assert [batch.staleness(r) for r in batch.rows] == [1, 1, 0, 0, 0, 0]
    assert uses(batch) == [(1, 0.0), (1, 0.0), *[(0, None)] * 4]


def test_a_replayed_group_is_compared_with_itself(stage):
    """Rewards 1 and 0: +-0.7071 again, though the batch has other groups."""
    batch = batch_of(Rollouts(stage()), 2)
    assert [r.columns["advantages"] for r in batch.rows] == pytest.approx(
        [0.7071, -0.7071, 0.7071, -0.7071, 0, 0], abs=1e-4)


def test_the_reported_reward_is_that_of_new_rows(stage):
    """Those of step 2 have 0 and 1; the replayed group of step 1 has 1 and 0."""
    context = stage()
    explore(context, 2, [0.0, 0.0, 0.0, 1.0])
    metrics = batch_of(Rollouts(context), 2).metrics
    assert (metrics.reward, metrics.solve_rate) == (0.25, 0.25)


def test_a_cool_down_keeps_a_group_back(stage):
    """Two steps: what step 1 trained may come in step 3, what step 2 trained in step 4."""
    source = Rollouts(stage(f"{REPLAY}.reuse_cooldown_time=2"))
    assert [again(source, step) for step in (1, 2, 3, 4)] == [[], [], ["1/0", "1/1"], ["2/0", "2/1"]]


def test_uses_are_counted_and_limited(stage, monkeypatch):
    """The oldest first, at most two uses: 1/0 in step 2, 1/1 in step 3, then 2/0, 2/1, 3/0."""
    def oldest(decay: float) -> str:
        return "(CASE WHEN use_count < 2 THEN -weights_version END)"

    monkeypatch.setitem(priority.PRIORITIES, "linear_decay", oldest)
    source = Rollouts(stage())
    found = [again(source, step) for step in range(1, 7)]
    assert found == [[], ["1/0", "1/1"], ["1/2", "1/3"], ["2/0", "2/1"], ["2/2", "2/3"], ["3/0", "3/1"]]


def test_a_stage_that_is_taken_up_draws_as_if_it_had_never_stopped(stage):
    """Noise decides here, and a used group comes before others: groups come twice and more."""
    noisy = (f"{REPLAY}.priority_fn=decay_limit_randomization",
             f"{REPLAY}.priority_fn_args={{decay: -3.0, sigma: 3.0, seed: 4}}")
    context = stage(*noisy)
    source = Rollouts(context)
    whole = [batch_of(source, step) for step in range(1, 7)]
    assert max(count for batch in whole for count, _ in uses(batch)) > 1
    taken_up = Rollouts(context)
    for step in (5, 6, 2):
        batch = batch_of(taken_up, step)
        assert batch.rows == whole[step - 1].rows


def test_a_group_without_a_usable_row_is_not_drawn(stage):
    context = stage(steps=0)
    explore(context, 1, [None, None, 1.0, 0.0])
    explore(context, 2, [1.0, 0.0, 1.0, 0.0])
    assert again(Rollouts(context), 2) == ["1/2", "1/3"]


def test_too_old_groups_are_not_drawn(stage):
    """max_staleness 1: step 4 trains versions 2 and 3, so 2 from step 3; with a cool-down of 2 only step 2's may."""
    limit = ("algorithm.sample_strategy=staleness_control", "algorithm.sample_strategy_args.max_staleness=1")
    assert again(Rollouts(stage(*limit)), 4) == ["3/0", "3/1"]
    assert again(Rollouts(stage(*limit, f"{REPLAY}.reuse_cooldown_time=2")), 4) == []


@pytest.mark.parametrize(("versions", "drawn"), [((3, 3), ["g"]), ((3, 1), []), ((1, 3), [])])
def test_a_group_that_two_steps_share_is_as_old_as_its_oldest_row(stage, versions, drawn):
    """Each of the first two steps has a row of it; the third may train on version 2 and newer."""
    settings = stage(steps=0).config.buffer.trainer_input.experience_buffer.replay_buffer
    fresh = (f"SELECT 'g' AS group_id, 1 AS step, {one} AS weights_version, 0 AS position" for one in (*versions, 9))
    replay = Replay(tables.connect(), settings, priority.linear_decay(), 1, lambda step: next(fresh),
                    lambda step: 2 if step == 3 else 0)
    assert replay.draw(3)["group_id"].to_pylist() == drawn


def test_what_a_row_was_used_for_is_in_its_record(stage):
    import numpy as np

    source = Rollouts(stage())
    batch = batch_of(source, 2)
    made = trained_rows(batch, [np.zeros(len(r.mask), np.float32) for r in batch.rows])
    assert [(r.experience_id, r.use_count, r.priority, r.is_expert) for r in made[1:3]] == [
        ("1/1", 1, -2.0, False), ("2/0", 0, None, False)]
    tables.to_arrow(made, records.Trained)


@pytest.mark.parametrize(("override", "words"), [
    (f"{REPLAY}.priority_fn=linear", "priority_fn 'linear'"), (f"{REPLAY}.priority_fn_args.decai=1", "'linear_decay'"),
    (f"{REPLAY}.priority_fn_args.decay=x", "priority_fn_args.decay"),
    ("algorithm.advantage_fn=grop", "algorithm.advantage_fn 'grop'"),
    ("algorithm.advantage_fn_args.epsilom=1", "'epsilom'"), ("algorithm.advantage_fn_args.epsilon=0", "than 0")])
def test_a_priority_or_an_advantage_that_does_not_exist_is_refused(stage, override, words):
    with refuses(ConfigError, words):
        Rollouts(stage(override))
