"""Explorer steps that take the first groups to be complete: which ones, their rows, and what is trained on."""

import pytest

from ouroboros.pipeline.store import records, tables
from ouroboros.stages.explore import explore
from ouroboros.stages.explorer.over_rollout import FirstComplete
from ouroboros.stages.learner.batches.rollouts import Rollouts
from ouroboros.workflows.protocol.outcomes import LATE, Outcome
from tests.configs import problems_of
from tests.stages.conftest import publish_model

GROUPS = [0, 0, 1, 1, 2, 2]  # of six attempts at three tasks
OK, FAILED = (lambda: Outcome("ok")), (lambda: Outcome("workflow_failed", "no tool"))


def test_a_group_counts_when_all_its_attempts_have_ended_one_of_them_with_a_response():
    first = FirstComplete(GROUPS, 2, 0.0)
    assert not first.reached([OK(), OK(), OK(), None, OK(), None])
    assert not first.reached([OK(), OK(), FAILED(), FAILED(), OK(), None])
    assert first.reached([OK(), OK(), None, None, FAILED(), OK()])


def test_the_others_have_some_more_seconds():
    clock = iter([10.0, 10.0, 14.9, 15.0])
    first = FirstComplete(GROUPS, 1, 5.0, lambda: next(clock))
    found = [[None] * 6, *[[OK(), OK(), None, None, None, None]] * 3]
    assert [first.reached(outcomes) for outcomes in found] == [False, False, False, True]


def test_complete_groups_are_taken_in_the_order_of_the_step_then_failed_ones():
    late = Outcome(LATE)
    assert FirstComplete(GROUPS, 2, 0.0).take([late, OK(), FAILED(), FAILED(), OK(), OK()]) == {1, 2}
    assert FirstComplete(GROUPS, 2, 0.0).take([OK() for _ in GROUPS]) == {0, 1}


def test_responses_of_a_group_that_is_not_taken_have_no_reward_and_failures_keep_their_reason():
    outcomes = [OK(), OK(), OK(), late := Outcome(LATE, "not waited for"), FAILED(), OK()]
    outcomes[2].components = {"accuracy": 1.0}  # of its environment
    FirstComplete(GROUPS, 1, 0.0).take(outcomes)
    assert [one.status for one in outcomes] == ["ok", "ok", LATE, LATE, "workflow_failed", LATE]
    assert (outcomes[2].reward, outcomes[2].accuracy, late.reason) == (None, None, "not waited for")


AGENT = "buffer.explorer_input.default_workflow_type=tests.agents:never_ends_where_it_is_late"
SMALL = ("buffer.batch_size=4", "algorithm.repeat_times=2", "buffer.total_steps=2", "synchronizer.sync_offset=0",
         "synchronizer.sync_timeout=10", "explorer.over_rollout.ratio=0.5",
         "buffer.explorer_input.default_reward_fn_type=tests.stages.test_over_rollout:length")


def length(response, answer):
    return {"accuracy": float(len(response) > 10)}


@pytest.fixture
def stage(of_kinds):
    return lambda *overrides, kinds=("late", "soon", "late", "soon"): of_kinds(kinds, *SMALL, *overrides)


def explored(context, number=1):
    """The rows of an explorer step, by slot, and its record."""
    explorer = publish_model(context, 0)
    explorer.step(number)
    explorer.writer.finish()
    assert not explorer.engine._waiting
    (rollout,) = tables.read(tables.step_file(context.directory, "rollouts", number), records.Rollout).to_pylist()
    table = tables.read(tables.step_file(context.directory, "experience", number), records.Experience)
    return table.drop(["unix_seconds"]).to_pylist(), rollout


def test_the_step_is_the_groups_that_were_complete_and_the_batch_is_full(stage):
    """Tasks 0 and 2 would last an hour: tasks 1 and 3 have the slots that train batches are cut from."""
    context = stage(AGENT)
    rows, rollout = explored(context)
    assert [(r["slot"], r["task_id"], r["group_id"], r["status"]) for r in rows] == [
        (0, "t1", "1/1", "ok"), (1, "t1", "1/1", "ok"), (2, "t3", "1/3", "ok"), (3, "t3", "1/3", "ok"),
        (4, "t0", "1/0", "late"), (5, "t0", "1/0", "late"), (6, "t2", "1/2", "late"), (7, "t2", "1/2", "late")]
    assert (rollout["attempts"], rollout["rows"], rollout["failed_rows"], rollout["late_groups"]) == (4, 4, 0, 2)
    source = Rollouts(context)
    batch = source.with_advantages(source.cut(1))
    assert [r.id for r in batch.rows] == [r["experience_id"] for r in rows[:4]]
    assert batch.metrics.failed_rows == 0


def test_the_rows_that_are_taken_are_those_of_a_step_that_waits_for_all(stage):
    """Seeds are those of the places in the step, whichever groups are taken."""
    taken, _ = explored(stage(AGENT))
    whole, rollout = explored(stage(AGENT, "explorer.over_rollout.ratio=0", kinds=("soon",) * 4))
    assert rollout["late_groups"] is None
    given = {(r["task_id"], r["run_index"]): (r["seed"], r["response_tokens"]) for r in whole}
    assert all(given[r["task_id"], r["run_index"]] == (r["seed"], r["response_tokens"]) for r in taken[:4])


def test_attempts_that_have_not_begun_are_late_too(stage):
    """Three attempts at a time: one of the last four has never begun when the first four have ended."""
    rows, rollout = explored(stage(AGENT, "explorer.runner_concurrency=3", kinds=("soon", "soon", "late", "late")))
    assert [r["task_id"] for r in rows if r["status"] == "ok"] == ["t0", "t0", "t1", "t1"]
    assert rollout["late_groups"] == 2


def test_groups_without_variance_are_replaced_among_those_that_were_taken(stage):
    """All rewards are equal: each of the two groups is replaced once, by tasks that the step has not asked."""
    rows, rollout = explored(stage(
        AGENT, "algorithm.max_resample_rounds=1", "explorer.max_failed_ratio=1",
        "buffer.explorer_input.default_reward_fn_type=tests.stages.test_over_rollout:same",
        kinds=("late", "soon", "late", "soon", "soon", "soon")))
    assert [(r["task_id"], r["status"], r["resample_round"]) for r in rows[::2]][2:] == [
        ("t1", "no_variance", 0), ("t3", "no_variance", 0), ("t0", "late", 0), ("t2", "late", 0)]
    assert {r["task_id"] for r in rows[:4]} == {"t4", "t5"}
    assert (rollout["resampled_groups"], rollout["missing_groups"], rollout["late_groups"]) == (2, 2, 2)


def same(response, answer):
    return {"accuracy": 1.0}


def test_after_a_kill_the_rows_that_were_written_decide(stage):
    """Step 1 is there, with tasks 1 and 3; now it would be others. Only step 2 is made."""
    context = stage(AGENT)
    before, _ = explored(context)
    changed = stage(AGENT, "mode=explore", kinds=("soon", "late", "soon", "late"))
    explore(changed)
    table = tables.read(tables.step_file(changed.directory, "experience", 1), records.Experience)
    assert table.drop(["unix_seconds"]).to_pylist() == before
    (second,) = tables.read(tables.step_file(changed.directory, "rollouts", 2), records.Rollout).to_pylist()
    assert second["late_groups"] == 2


@pytest.mark.parametrize(("given", "key"), [
    (("explorer.over_rollout.ratio=1",), "explorer.over_rollout.ratio"),  # no group would be left
    (("explorer.over_rollout.ratio=0.01",), "explorer.over_rollout.ratio"),  # less than one of 64
    (("explorer.over_rollout.ratio=-0.1",), "explorer.over_rollout.ratio"),
    (("explorer.over_rollout.ratio=0.25", "stages.rft.buffer.train_batch_size=512"), "buffer.train_batch_size")])
def test_settings_that_cannot_work_are_refused(given, key):
    """A quarter of 64 groups of eight leaves 384 rows, which 512 is no multiple of."""
    assert key in {problem.key for problem in problems_of(*given)}

