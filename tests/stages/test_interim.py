"""Evaluation on the way: when, of which weights, at whose cost, and that nothing else changes by it."""

import gc

from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.stages.explore import explore
from tests.golden.messages import refuses
from tests.stages.conftest import publish_model

INTERIM = ("explorer.eval_interval=2", "explorer.max_failed_ratio=1.0")  # the one test task has no truth to parse


def explored(context):
    """All four explorer steps, on-policy: step s is made by version s - 1."""
    publish_model(context, *range(4))
    explore(context)
    gc.unfreeze()
    return context


def rows_of(context):
    paths = sorted(context.directory.glob(tables.LOCATIONS["experience"]))
    return [row for path in paths for row in tables.read(path, records.Experience).drop(["unix_seconds"]).to_pylist()]


def test_it_changes_nothing_of_what_is_trained_on_and_is_filed_under_its_version(stage):
    """Every second version: of 0 to 3, that is 2, met in explorer step 3."""
    without = rows_of(explored(stage()))
    for path in stage().directory.rglob("*.parquet"):
        path.unlink()
    context = explored(stage(*INTERIM))
    assert rows_of(context) == without
    assert tables.steps_present(context.directory, "scores") == [2]
    assert tables.read_scores(context.directory, 2) == []  # all its responses failed
    samples = tables.read(tables.step_file(context.directory, "samples", 2), records.Sample).to_pylist()
    assert [s["decoding"] for s in samples] == ["greedy", *["sampled"] * 8]
    seconds = [tables.read(tables.step_file(context.directory, "rollouts", step), records.Rollout)
               ["evaluate_seconds"][0].as_py() for step in (1, 2, 3, 4)]
    assert [s > 0 for s in seconds] == [False, False, True, False]


def test_a_complete_one_is_not_repeated(stage):
    context = stage(*INTERIM)
    tables.write(tables.step_file(context.directory, "scores", 2), records.Score, [])
    explored(context)
    assert tables.read_scores(context.directory, 2) == []
    assert tables.steps_present(context.directory, "samples") == []


def test_a_set_without_tasks_is_named_before_the_first_step(stage):
    context = stage(*INTERIM)
    context.config.buffer.explorer_input.eval_tasksets[0].split = "validation"
    with refuses(DataError, "evaluation set 'countdown_test'"):
        publish_model(context, 0)
