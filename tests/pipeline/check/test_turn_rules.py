"""What a configuration must not say of turns."""

import json

import pytest

from ouroboros.pipeline.check.named_functions import wrong_arguments
from ouroboros.pipeline.check.preflight import check
from ouroboros.pipeline.check.stage import unfit_turns
from ouroboros.pipeline.check.workload import disk, row_bytes
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.store.errors import Problem
from tests.configs import changed, overridden, places
from tests.sizes import SMALL

SOURCE = "buffer.explorer_input"
ROOM = {"model.max_prompt_tokens": 24, "model.max_response_tokens": 12, "model.max_model_len": 64}
RETRY = {f"{SOURCE}.default_workflow_type": "retry_workflow"}


def found(*parts: dict) -> list[Problem]:
    return unfit_turns(Recipe(changed({key: value for part in parts for key, value in part.items()})))


def test_several_turns_are_fine_where_they_have_room():
    assert found({}) == found(RETRY, ROOM) == []
    assert found(RETRY, {f"{SOURCE}.taskset.workflow_args": {"feedback": None},
                         f"{SOURCE}.default_eval_workflow_type": "simple_workflow"}) == []
    assert found(RETRY, {f"{SOURCE}.taskset.workflow_args": {"max_env_steps": 1},
                         f"{SOURCE}.default_eval_workflow_type": "simple_workflow"}) == []


def test_without_room_a_second_turn_would_never_come():
    """24 + 2 x 12 = 48 tokens must be fewer than a sequence has; sft is followed by an evaluation, rft explores too."""
    assert sorted(places(found(RETRY, {**ROOM, "model.max_model_len": 48}))) == [
        f"rft: {SOURCE}.eval_tasksets.0", f"rft: {SOURCE}.taskset"]
    assert found(RETRY, {**ROOM, "model.max_model_len": 49}) == []


@pytest.mark.parametrize(("name", "value"), [
    ("max_env_steps", 0), ("max_env_steps", True), ("max_env_steps", "3"), ("feedback", 3)])
def test_arguments_of_the_wrong_kind(name, value):
    (problem,) = wrong_arguments(changed({**RETRY, **ROOM, f"{SOURCE}.taskset.workflow_args": {name: value}}))
    assert problem.key == f"{SOURCE}.taskset.workflow_args.{name}"


def test_arguments_that_a_workflow_does_not_have(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = check(changed({**RETRY, **ROOM, f"{SOURCE}.taskset.workflow_args": {"max_steps": 3, "task": 1}}))
    assert places(report.problems) == 2 * [f"rft: {SOURCE}.taskset.workflow_args"]
    assert all(f"'{name}'" in problem for name, problem in zip(("max_steps", "task"), report.problems, strict=True))


@pytest.mark.parametrize(("workflow", "keys"), [
    ("simple_workflow", []), ("retry_workflow", ["buffer.explorer_input.taskset.format.reply_prefix"])])
def test_a_reply_has_a_prefix_where_an_attempt_has_one_reply(tmp_path, workflow, keys):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"question": f"{i}", "answer": "1"}) + "\n" for i in range(40)))
    place = "buffer.explorer_input.taskset"
    wrong = wrong_arguments(changed({f"{place}.path": str(path), f"{place}.format.reply_prefix": "<think>",
                                     f"{place}.default_workflow_type": workflow}))
    assert [one.key for one in wrong if "reply_prefix" in one.key] == keys


def test_an_algorithm_that_compares_states_needs_a_workflow_that_tells_them():
    gigpo = {"algorithm.algorithm_type": "gigpo"}
    assert places(found(gigpo)) == ["rft: algorithm.advantage_fn"]
    assert found(gigpo, RETRY, ROOM) == []
    assert found(gigpo, {f"{SOURCE}.taskset.default_workflow_type": "mine.workflows:walk"}) == []


def test_the_disk_has_room_for_every_turn():
    """Three turns with prompts of at most 64 - 12 = 52 tokens, against one of 24."""
    plain = disk(overridden(*(f"{key}={value}" for key, value in ROOM.items())), SMALL, 4)
    turns = disk(overridden(*(f"{key}={value}" for key, value in (ROOM | RETRY).items())), SMALL, 4)
    assert turns.tables == pytest.approx(plain.tables * 3 * row_bytes(52, 12) / row_bytes(24, 12))
