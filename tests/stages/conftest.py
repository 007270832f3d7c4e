"""An explorer at work on three tasks, as tests of several modules need it."""

import pytest

from ouroboros.pipeline.store import records, tables, versions
from ouroboros.stages.explore import Explorer, read_tasks
from ouroboros.stages.learner.engine import policy
from tests.configs import TINY
from tests.factories import row

LONG = "9" * 60  # over 40 prompt tokens
TASKS = [row(records.Task, task_id=f"t{i}", row=i, split=split, question=question, answer=answer)
         for i, (split, question, answer) in enumerate([
             ("train", "1 2 = 3", '{"numbers": [1, 2], "target": 3}'), ("test", "held out", "{}"),
             ("train", LONG, "{}"), ("train", "4 5 = 9", "no JSON at all")])]

SMALL = ("buffer.batch_size=3", "algorithm.repeat_times=2", "buffer.total_steps=4", "explorer.max_failed_ratio=0.5",
         "synchronizer.sync_offset=0", "synchronizer.sync_timeout=10")


@pytest.fixture
def stage(tmp_path, tiny_model, context_of):
    """A context with three train tasks: one good, one too long, one whose truth is broken; version 0 published."""
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, TASKS)

    def make(*overrides):
        context = context_of(tmp_path / "rft", *TINY, *SMALL, *overrides, tasks=tmp_path / "curate", model=tiny_model)
        (tmp_path / "rft").mkdir(exist_ok=True)
        return context

    return make


@pytest.fixture
def of_kinds(tmp_path, tiny_model, context_of):
    """of_kinds(kinds, "key=value", ..., life=..., **columns): a context with a task of each kind, in the order of the
    file. columns: a value for each task."""

    def make(kinds, *overrides, life="first", **columns):
        tasks = [row(records.Task, task_id=f"t{i}", row=i, split="train", question=f"{i} + {i}", answer=kind,
                     **{name: values[i] for name, values in columns.items()}) for i, kind in enumerate(kinds)]
        tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, tasks)
        return context_of(tmp_path / life / "rft", *TINY, *overrides,
                          "buffer.explorer_input.taskset.data_selector.selector_type=sequential",
                          tasks=tmp_path / "curate", model=tiny_model)

    return make


def open_explorer(context):
    return Explorer(context, *read_tasks(context))


def publish_model(context, *numbers):
    """The tiny model's weights as these versions, proved by its own log-probs."""
    explorer = open_explorer(context)
    probe = {"tokens": [5, 6, 7], "logprobs": explorer.engine.score([[5, 6, 7]])[0]}

    model = explorer.engine.model
    for number in numbers:
        versions.publish(context.directory, number, lambda path: policy.export(
            dict(model.named_parameters()), model, path) and None, probe)
    return explorer


def step(explorer, number=1):
    """One step, files included."""
    rollout = explorer.step(number)
    explorer.writer.finish()
    return rollout
