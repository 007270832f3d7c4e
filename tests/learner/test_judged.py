"""Train batches of rows that operators judged: by what is left of each group, and by the rewards they gave."""

from math import isclose, sqrt

import pytest

from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.errors import StageError
from ouroboros.stages.learner.batches.rollouts import Rollouts
from tests.factories import row
from tests.learner.test_replay import ON, again
from tests.learner.test_rollouts import SMALL, batch_of, explore

OPERATORS = "data_processor.experience_pipeline.operators=[{name: reward_filter}]"


@pytest.fixture
def stage(tmp_path, context_of):
    tasks = [row(records.Task, task_id=f"t{i}", row=i, split="train") for i in range(3)]
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, tasks)
    return lambda *overrides: context_of(tmp_path / "rft", *SMALL, OPERATORS, *overrides, tasks=tmp_path / "curate")


def judge(context, step, rewards, dropped=()):
    made = [row(records.Curated, experience_id=f"{step}/{i}", step=step, reward=reward, scores={},
                **({"operator": "reward_filter", "reason": "low"} if i in dropped else {}))
            for i, reward in enumerate(rewards) if reward is not None]
    tables.write(tables.step_file(context.directory, "curated", step), records.Curated, made)


def test_a_group_is_compared_over_what_is_left_by_the_new_rewards(stage):
    """Of experience (1, 1 | 0, 1) the shaped rewards are (3, 1 | 0, 1): the first group has mean 2 and std sqrt(2).
    Row 2 is dropped, and row 3 alone has the advantage 0."""
    context = stage()
    explore(context, 1, [1.0, 1.0, 0.0, 1.0])
    judge(context, 1, [3.0, 1.0, 0.0, 1.0], dropped={2})
    batch = batch_of(Rollouts(context), 1)
    assert [one.id for one in batch.rows] == ["1/0", "1/1", "1/3"]
    assert [one.advantage for one in batch.rows][2] == 0
    assert all(isclose(one.advantage, expected, rel_tol=1e-5) for one, expected in zip(
        batch.rows, (1 / sqrt(2), -1 / sqrt(2)), strict=False))
    assert (batch.metrics.dropped_rows, batch.metrics.failed_rows) == (1, 0)
    assert isclose(batch.metrics.reward, 5 / 3)


def test_a_failed_row_is_no_dropped_one(stage):
    context = stage()
    explore(context, 1, [1.0, None, 0.0, 1.0])
    judge(context, 1, [1.0, None, 0.0, 1.0], dropped={0})
    batch = batch_of(Rollouts(context), 1)
    assert ([one.id for one in batch.rows], batch.metrics.dropped_rows, batch.metrics.failed_rows) == (
        ["1/2", "1/3"], 1, 1)


def test_a_step_of_which_nothing_is_left_ends_the_stage(stage):
    context = stage()
    explore(context, 1, [1.0, 0.0, 0.0, 1.0])
    judge(context, 1, [1.0, 0.0, 0.0, 1.0], dropped=range(4))
    with pytest.raises(StageError) as error:
        Rollouts(context).cut(1)
    assert "curated" in str(error.value)


def test_what_was_dropped_is_never_replayed(stage):
    """Step 2 replays the best group of step 1 of which something is left: the second."""
    context = stage(*ON)
    for step in (1, 2):
        explore(context, step, [1.0, 0.0, 1.0, 1.0])
        judge(context, step, [1.0, 0.0, 1.0, 1.0], dropped={0, 1} if step == 1 else ())
    assert again(Rollouts(context), 2) == ["1/2", "1/3"]


def test_without_operators_there_is_no_such_number(stage):
    context = stage()
    context.config.data_processor.experience_pipeline.operators = []
    explore(context, 1, [1.0, 0.0, 0.0, 1.0])
    assert batch_of(Rollouts(context), 1).metrics.dropped_rows is None
