"""An explorer with several sets of tasks: each is attempted and rewarded as it says."""

import json

import pytest

from ouroboros.pipeline.settings.data import Taskset
from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.errors import ConfigError, DataError
from ouroboros.workflows.single_turn import Trajectory
from tests.configs import TINY, element
from tests.factories import row
from tests.golden.messages import refuses
from tests.stages.conftest import SMALL, open_explorer, publish_model, step

ALWAYS = "tests.stages.test_explore_sets:always"
SETS = [{"name": "sums", "path": "sums.jsonl", "default_reward_fn_type": ALWAYS, "reward_fn_args": {"score": 2.0}},
        {"name": "talks", "path": "talks.jsonl", "default_workflow_type": "tests.stages.test_explore_sets:prefixed",
         "workflow_args": {"first": 51}, "default_reward_fn_type": ALWAYS,
         "data_selector": {"selector_type": "sequential"}}]


def always(response, answer, score=1.0):
    return {"accuracy": 1.0, "bonus": score - 1.0}


def prefixed(prompt, first=50):
    """A workflow that puts a token before the prompt."""
    reply = yield [first, *prompt]
    return Trajectory([first, *prompt], reply.tokens, reply.logprobs, [1] * len(reply.tokens), reply.finish_reason)


@pytest.fixture
def mixed(tmp_path, tiny_model, context_of):
    """A context with two sets of two tasks, one of the pool that neither reads, and one of the same name to test."""
    kept = [row(records.Task, task_id=f"t{i}", row=i, taskset=name, split=split, question=f"{i}", answer="a",
                context=[{"role": "system", "content": "Add "}] if name == "talks" else [])
            for i, (name, split) in enumerate([("sums", "train"), ("talks", "train"), (None, "train"),
                                               ("sums", "test"), ("talks", "train"), ("sums", "train")])]
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, kept)

    def make(*overrides, sets=SETS):
        context = context_of(tmp_path / "rft", *TINY, *SMALL, *overrides, tasks=tmp_path / "curate", model=tiny_model)
        context.config.buffer.explorer_input.tasksets = [element(Taskset, given) for given in sets]
        return context

    return make


def test_each_task_is_attempted_and_rewarded_as_its_own_set_says(mixed):
    """Four tasks twice in a step of four: all of both sets. `Add 1:` is what set talks asks of its first."""
    context = mixed("buffer.batch_size=4")
    step(publish_model(context, 0))
    found = tables.read(tables.step_file(context.directory, "experience", 1), records.Experience).to_pylist()
    assert {(r["taskset"], r["task_id"], r["reward"]) for r in found} == {
        ("sums", "t0", 2.0), ("sums", "t5", 2.0), ("talks", "t1", 1.0), ("talks", "t4", 1.0)}
    assert {(r["taskset"], r["prompt"]) for r in found} == {
        ("sums", "0:"), ("sums", "5:"), ("talks", "MAdd 1:"), ("talks", "MAdd 4:")}
    assert {r["prompt_tokens"][0] == 51 for r in found if r["taskset"] == "talks"} == {True}
    assert [r["task_id"] for r in found if r["taskset"] == "talks"] == ["t1", "t1", "t4", "t4"]  # sequential


def test_each_set_is_sampled_as_it_says(mixed):
    context = mixed("buffer.batch_size=4", sets=[
        {**SETS[0], "rollout_args": {"temperature": 0.25, "max_tokens": 3}}, SETS[1]])
    step(publish_model(context, 0))
    found = tables.read(tables.step_file(context.directory, "experience", 1), records.Experience).to_pylist()
    assert {(r["taskset"], r["temperature"]) for r in found} == {("sums", 0.25), ("talks", 1.0)}
    lengths = {name: max(len(r["response_tokens"]) for r in found if r["taskset"] == name)
               for name in ("sums", "talks")}
    assert lengths["sums"] <= 3 < lengths["talks"]


def test_each_row_is_attempted_and_rewarded_as_it_says(mixed, tmp_path):
    """t0 again until it is right, as it is at once; t5 by the form of its response alone, which begins with `=`."""
    kept = tables.read(tmp_path / "curate" / "tasks.parquet", records.Task).to_pylist()
    said = {"t0": {"workflow": "retry_workflow"}, "t5": {"reward_fn": ["format_reward"], "reply_prefix": "="}}
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, [
        records.Task(**{**one, "choices": json.dumps(said[one["task_id"]]) if one["task_id"] in said else None})
        for one in kept])
    arguments = {"reward_fn_args": {"score": 2.0}, "workflow_args": {"max_env_steps": 2}}
    context = mixed("buffer.batch_size=2", "model.max_model_len=200", sets=[{**SETS[0], **arguments}])
    step(publish_model(context, 0))
    found = tables.read(tables.step_file(context.directory, "experience", 1), records.Experience).to_pylist()
    by_task = {name: [r for r in found if r["task_id"] == name] for name in said}
    assert [(r["step_reward"], r["reward"]) for r in by_task["t0"]] == [(2.0, 2.0)] * 2
    assert [(r["step_reward"], r["prompt"], r["reward"]) for r in by_task["t5"]] == [(None, "5:=", -2.0)] * 2


def test_a_group_that_is_replaced_is_replaced_by_another_task_of_its_set(mixed):
    """Two of the four tasks are asked; every response is right, so in round 1 the other task of each set is."""
    context = mixed("buffer.batch_size=2", "algorithm.max_resample_rounds=1", "seed=4")
    step(publish_model(context, 0))
    found = tables.read(tables.step_file(context.directory, "experience", 1), records.Experience).to_pylist()
    asked = {(r["group_id"], r["resample_round"]): (r["taskset"], r["task_id"]) for r in found}
    sets = {place: {asked[group][0] for group in asked if group[0].split(".")[0] == place} for place in ("1/0", "1/1")}
    assert len(asked) == 4
    assert all(len(names) == 1 for names in sets.values())
    assert sorted(task for _, task in asked.values()) == ["t0", "t1", "t4", "t5"]


def test_limits_are_those_of_each_set(mixed):
    explorer = open_explorer(mixed(sets=[{**SETS[0], "limit": 1}, SETS[1]]))
    assert [task.task_id for task in explorer.prompts.tasks] == ["t0", "t1", "t4"]
    assert [explorer.prompts.set_of(n).name for n in range(3)] == ["sums", "talks", "talks"]


@pytest.mark.parametrize(("change", "error", "words"), [
    ({"name": "nobody"}, DataError, "taskset 'nobody':"),
    ({"workflow_args": {"frist": 1}}, ConfigError, "workflow_args:")])
def test_a_set_that_cannot_be_explored_is_named(mixed, change, error, words):
    with refuses(error, words):
        open_explorer(mixed(sets=[SETS[0], {**SETS[1], **change}]))
