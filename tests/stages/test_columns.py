"""Columns of a record, from its file to the reward of a task: what a plan asks for, stages keep, functions take."""

import json
import logging
from pathlib import Path

import pytest

from ouroboros.operators.columns import keeping, kept_of, with_columns
from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.settings.data import TaskFormat, Taskset
from ouroboros.pipeline.settings.row_columns import asked_columns
from ouroboros.pipeline.store import tables
from ouroboros.pipeline.store.errors import ConfigError, DataError
from ouroboros.pipeline.store.records import RawTask, Task
from ouroboros.stages import curate, tasks
from ouroboros.workflows.attempts.apart import apart
from ouroboros.workflows.attempts.user_reward import Rule
from ouroboros.workflows.protocol.outcomes import Outcome
from ouroboros.workflows.protocol.trajectory import Trajectory
from ouroboros.workflows.rewards import Rewards, add_own_rewards
from ouroboros.workflows.single_turn import load_workflows
from tests.configs import composed, element
from tests.golden.messages import refuses
from tests.plans import planned

SOURCE = "buffer.explorer_input"
ME = "tests.stages.test_columns"
ROWS = [{"question": "a", "answer": "1", "tests": [1, 2], "level": 3, "extra": {"index": 7}, "unread": "x"},
        {"question": "a", "answer": "1", "tests": [4], "level": 3, "extra": {"index": 8}},
        {"question": "b", "answer": "2", "tests": None}]


def passed(response, answer, tests, index=0):
    return {"tests": float(sum(tests or [])), "index": float(index or 0)}


def easy(response, answer, level):
    return float(level or 0)


def every(response, answer, **columns):
    return float(len(columns))


def of_verl(solution_str, ground_truth, data_source, extra_info=None):
    return 1.0


def leveled(prompt, level, tests=None):
    yield prompt, level, tests


def agent(task, endpoint, level):
    return {"level": level}


made = Rule(passed, {}, 0)  # an object: its source says no parameters


@pytest.fixture
def plan(tmp_path):
    """plan({setting: value}): by name the stages of a run whose training set is ROWS."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in ROWS))

    def make(values):
        given = {f"{SOURCE}.taskset.path": str(path), f"{SOURCE}.default_reward_fn_type": f"{ME}:passed",
                 "data_processor.task_pipeline.config_path": None, **values}
        return {stage.name: stage for stage in planned(tmp_path, given).stages}

    return make


def worked(stage, work, directory: Path, **inputs: Path):
    context = Context("p/n", stage.name, stage.identity, directory, stage.config, inputs, logging.getLogger("test"))
    work(context)
    return directory


def test_a_reward_gets_the_columns_of_its_row_and_other_columns_make_another_task(plan, tmp_path):
    stages = plan({f"{SOURCE}.taskset.reward_fn_args": {"index": "${column:extra.index}"}})
    raw = worked(stages["tasks_rft"], tasks.work, tmp_path / "raw")
    kept = worked(stages["curate_rft"], curate.work, tmp_path / "kept", tasks=raw)
    read = [Task(**row) for row in tables.read(kept / tables.LOCATIONS["tasks"], Task).to_pylist()]
    assert [json.loads(one.columns) for one in read] == [
        {"extra.index": 7, "tests": [1, 2]}, {"extra.index": 8, "tests": [4]}, {"extra.index": None, "tests": None}]
    assert len({one.task_id for one in read}) == 3
    outcomes = [Outcome("ok", trajectory=Trajectory([1], [2], [-1.0], [1], "stop"), response="x") for _ in read]
    config = stages["rft"].config
    functions = Rewards(config).by_task(config.buffer.explorer_input.taskset, read)
    add_own_rewards(outcomes, read, functions, range(3), config)
    assert [one.components for one in outcomes] == [
        {"tests": 3.0, "index": 7.0}, {"tests": 4.0, "index": 8.0}, {"tests": 0.0, "index": 0.0}]


def test_columns_are_part_of_the_identity_of_the_stages_that_read_them(plan):
    def directories(function, **more):
        return {name: stage.directory for name, stage in plan({
            f"{SOURCE}.taskset.default_reward_fn_type": function, **more}).items()}

    without, by_name, others = (directories(name) for name in ("accuracy_reward", f"{ME}:passed", f"{ME}:easy"))
    assert len({each["tasks_rft"] for each in (without, by_name, others)}) == 3
    assert {each["sft"] for each in (without, by_name, others)} == {without["sft"]}
    assert directories("accuracy_reward", **{f"{SOURCE}.taskset.columns": ["tests"]})["tasks_rft"] == (
        by_name["tasks_rft"])


def test_what_a_later_stage_rewards_again_is_kept_with_the_tasks(plan):
    easier = {"explorer_input": {"default_reward_fn_type": f"{ME}:easy"}}
    again = {"stage_name": "again", "mode": "score", "buffer": easier}
    stages = plan({"stages": [{"stage_name": "look", "mode": "explore"}, again], f"{SOURCE}.eval_tasksets": []})
    assert stages["tasks"].config.buffer.explorer_input.taskset.columns == ["level", "tests"]


@pytest.mark.parametrize(("given", "columns"), [
    ({"default_reward_fn_type": f"{ME}:every"}, ["*"]),
    ({"default_reward_fn_type": "accuracy_reward"}, []),
    ({"default_reward_fn_type": [f"{ME}:easy", f"{ME}:passed"]}, ["level", "tests"]),
    ({"default_reward_fn_type": f"{ME}:easy", "reward_fn_args": {"level": 2}}, []),
    ({"default_reward_fn_type": f"{ME}:of_verl"}, ["data_source", "extra_info", "ground_truth"]),
    ({"default_reward_fn_type": f"{ME}:made", "columns": ["tests"]}, ["tests"]),
    ({"default_reward_fn_type": "accuracy_reward", "default_workflow_type": f"{ME}:agent"}, ["level"]),
    ({"default_reward_fn_type": "accuracy_reward", "default_workflow_type": f"{ME}:leveled",
      "workflow_args": {"tests": "${column:cases}"}}, ["cases", "level"])])
def test_a_set_keeps_what_its_functions_take(given, columns):
    assert asked_columns(element(Taskset, given), composed().buffer.explorer_input, "taskset") == columns


def test_all_columns_are_all_but_the_prompt_and_bytes_and_a_truth_that_is_no_text_is_one():
    record = {"question": "q", "answer": {"target": ["5"]}, "image": {"bytes": b"1"}, "level": 2}
    columns = TaskFormat()
    assert kept_of(record, ["*"], columns) == {"answer": {"target": ["5"]}, "level": 2}
    assert kept_of(record, ["extra_info", "ground_truth", "level"], columns) == {
        "ground_truth": {"target": ["5"]}, "level": 2}
    assert kept_of({"answer": "5"}, ["ground_truth", "tests"], columns) == {"tests": None}


def test_a_column_that_no_record_has_is_an_error_and_one_of_bytes_a_row_that_cannot_be_used():
    with refuses(DataError, "'tests'"):
        [*keeping([{"test": 1}, {"test": 2}], ["tests"], TaskFormat(), [])]
    row = RawTask(0, "q", "a", None)
    assert "'image'" in with_columns(row, {"level": 1, "image": b"1"}).problem
    assert "'text'" in with_columns(row, {"text": "\ud800"}).problem
    assert with_columns(row, {}).columns is None


def test_a_workflow_gets_columns_too():
    task = Task("t", 0, "train", "q", "a", columns='{"level": 3, "cases": [1]}', solution=None)
    (workflow,) = load_workflows(f"{ME}:leveled", [task], {"tests": "${column:cases}"})
    assert next(workflow([5])) == ([5], 3, [1])
    (attempt,) = load_workflows(f"{ME}:agent", [task])
    assert attempt.function(None, None) == {"level": 3}
    with refuses(ConfigError, "'level'"):
        load_workflows(f"{ME}:leveled", [Task("t", 0, "train", "q", "a", solution=None)])


def test_a_function_in_a_process_of_its_own_gets_columns():
    called = Rule(apart(passed, f"{ME}:passed", None), {"index": "${column:extra.index}"}, 0)
    assert called([[]], ["x"], ["1"], [1], columns=[{"tests": [1, 2], "extra.index": 7}]) == [
        {"tests": 3.0, "index": 7.0}]
