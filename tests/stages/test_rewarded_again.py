"""Stored responses under corrected rewards: what differs, in the process that compares."""

import logging
from dataclasses import replace

import pytest

from ouroboros.pipeline.job import rewarding, trunks
from ouroboros.pipeline.job.activity import Activity
from ouroboros.pipeline.settings.reward_rules import unrepeatable
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store import files, records, tables
from ouroboros.stages import rewarded_again
from tests.configs import TINY, overridden
from tests.factories import row
from tests.stages.conftest import SMALL, TASKS, publish_model, step

REWARD = "buffer.explorer_input.default_reward_fn_type=tests.stages.test_rewarded_again:"


def length(response, answer, bonus=0):
    return {"length": len(response) + bonus, "why": 0}


def longer(response, answer):
    return length(response, answer, bonus=3)


def renamed(response, answer):
    return {"size": len(response), "why": 0}


def noted(solution_str, ground_truth):
    return {"score": len(solution_str), "pred": "seen"}


def noted_otherwise(solution_str, ground_truth):
    return {"score": len(solution_str), "pred": "other"}


def fails_late(response, answer):
    assert "numbers" in answer
    return length(response, answer)


def fails(response, answer):
    raise ValueError("no")


def marked(response, answer):
    return length(response, answer)


marked.repeatable = False


@pytest.fixture
def explored(stage, tiny_model, tmp_path):
    """explored(name of a function above, sample, ...): the directory of a stage with one explorer step that it
    rewarded, and an evaluation."""
    inputs = {"tasks": str(tmp_path / "curate"), "model": str(tiny_model)}

    def explore(name, *samples):
        source = stage(REWARD + name)
        step(publish_model(source, 0))
        for sample in samples:
            tables.write(tables.step_file(source.directory, "samples", 0), records.Sample, [sample])
            tables.write(tables.step_file(source.directory, "scores", 0), records.Score, [])
        files.write_json(source.directory / "stage.json", {"kind": "rft", "config": plain(source.config),
                                                               "inputs": inputs})
        return source.directory

    return explore


@pytest.fixture
def again(explored, tmp_path):
    """again("key=value", ..., tasks=..., of=...): the answer on a step that a function rewarded, under other settings;
    and the rows that were written."""

    def run(*overrides, tasks=None, of="length", samples=(), **asked):
        donor = explored(of, *samples)
        own, inputs = tmp_path / ("other" if tasks else "curate"), files.read_json(donor / "stage.json")["inputs"]
        if tasks:
            tables.write(own / "tasks.parquet", records.Task, tasks)
        config = plain(overridden(*TINY, *SMALL, *overrides))
        spec = {"run": "p/r", "name": "rft", "kind": "rft", "identity": "0", "config": config,
                "inputs": inputs | {"tasks": str(own)}}
        found = rewarded_again.answer({"donor": str(donor), "spec": spec, "out": str(tmp_path / "out" / "rft"),
                                       "rows": None, "whole": False} | asked, Activity())
        file = tables.step_file(tmp_path / "out" / "rft", "experience", 1)
        return found, tables.read(file, records.Experience).to_pylist() if file.exists() else []

    return run


def test_the_same_reward_is_equal_and_writes_nothing(again):
    assert again(f"{REWARD}length") == ({"equal": 1, "first": "", "unlike": "", "evaluated": False}, [])
    assert len(again(f"{REWARD}length", whole=True)[1]) == 6


@pytest.mark.parametrize(("given", "where"), [
    ((f"{REWARD}length", "buffer.explorer_input.taskset.reward_fn_args={bonus: 2}"), " has reward "),
    ((f"{REWARD}renamed",), " has reward_components "),
    ((f"{REWARD}fails_late",), " has reason ")])
def test_any_other_column_of_a_reward_is_a_difference(again, given, where):
    found, rows = again(*given)
    assert (found["equal"], len(rows)) == (0, 6)
    assert where in found["first"]


def test_another_note_is_a_difference(again):
    assert again(f"{REWARD}noted", of="noted")[0]["equal"] == 1
    assert " has notes " in again(f"{REWARD}noted_otherwise", of="noted")[0]["first"]


def test_a_function_that_is_marked_is_not_called(again):
    found, rows = again(f"{REWARD}marked")
    assert "test_rewarded_again:marked" in found["unlike"]
    assert not rows


@pytest.mark.parametrize(("function", "fails"), [("marked", False), ("fails", True)])
def test_an_evaluation_with_a_marked_function_is_left_out_and_one_that_fails_costs_no_steps(again, function, fails):
    own = f"buffer.explorer_input.eval_tasksets.0.default_reward_fn_type=tests.stages.test_rewarded_again:{function}"
    found, _ = again(f"{REWARD}length", own, "explorer.max_failed_ratio=0", samples=[SAMPLE])
    assert (found["equal"], found["evaluated"], "unevaluated" in found) == (1, False, fails)


def test_an_answer_makes_another_task_and_another_prompt_is_refused(again):
    answered = [replace(one, task_id="new", answer="other") if one.task_id == "t0" else one for one in TASKS]
    found, rows = again(f"{REWARD}length", tasks=answered)
    assert found["equal"] == 0
    assert {row["task_id"] for row in rows} == {"new", "t2", "t3"}
    assert again(f"{REWARD}length", tasks=[replace(TASKS[0], question="else"), *TASKS[1:]])[0]["unlike"]
    assert again(f"{REWARD}length", tasks=TASKS[:-1])[0]["unlike"]
    chosen = [replace(one, choices='{"reward_fn": ["accuracy_reward"]}') for one in TASKS]
    assert "rows name" in again(f"{REWARD}length", tasks=chosen)[0]["unlike"]


SAMPLE = row(records.Sample, taskset="countdown_test", task_id="t1", decoding="greedy", response_tokens=[5, 6],
             status="ok", reward=2.0, notes=None)


@pytest.mark.parametrize(("sample", "override", "alike", "written"), [
    (SAMPLE, None, True, [5.0]),
    (replace(SAMPLE, reward=3.0), None, False, [5.0]),
    (replace(SAMPLE, task_id="other"), None, False, []),
    (SAMPLE, "buffer.explorer_input.default_eval_workflow_type=react_workflow", False, [])])
def test_an_evaluation_is_rewarded_again_if_its_first_one_comes_out_as_stored(again, tmp_path, sample, override, alike,
                                                                              written):
    more = [override] * (override is not None)
    assert again(f"{REWARD}length", *more, samples=[sample], rows=50)[0]["evaluated"] is alike
    found, _ = again(f"{REWARD}longer", *more, samples=[sample])
    assert found["evaluated"] is bool(written)
    file = tables.step_file(tmp_path / "out" / "rft", "samples", 0)
    made = tables.read(file, records.Sample).to_pylist() if file.exists() else []
    assert [one["reward"] for one in made] == written


@pytest.mark.parametrize(("override", "is_repeatable"), [
    ("buffer.explorer_input.default_reward_fn_type=judge_reward", False),
    ("buffer.explorer_input.default_workflow_type=mine:attempt", False),
    ("buffer.explorer_input.default_workflow_type=retry_workflow", False),
    ("buffer.explorer_input.default_workflow_type=verifiers_workflow", False),
    ("buffer.explorer_input.default_workflow_type=harness_agent", False),
    ("buffer.explorer_input.default_workflow_type=react_workflow", True),
    ("buffer.explorer_input.default_reward_fn_type=[accuracy_reward, format_reward]", True)])
def test_what_a_model_or_a_workflow_rewards_is_not_computed_again(override, is_repeatable):
    assert (not unrepeatable(overridden(*TINY, override))) == is_repeatable


def test_of_a_stage_that_a_judge_rewarded_nothing_is_taken(explored, tmp_path):
    donor = explored("length")
    config = plain(overridden(*TINY, "buffer.explorer_input.default_reward_fn_type=judge_reward"))
    files.write_json(donor / "stage.json", files.read_json(donor / "stage.json") | {"config": config})
    assert "judge_reward" in rewarding._offered(tmp_path / "new", donor, {}, None, None)


@pytest.mark.parametrize(("given", "chosen", "asked"), [
    ({"a": 9, "b": 4}, "a", 1), ({"a": 2, "b": 4}, "b", 2), ({"a": "no", "b": 4}, "b", 2),
    ({"a": "no", "b": "no"}, None, 2)])
def test_the_donor_that_gives_the_most_steps_is_taken(monkeypatch, tmp_path, given, chosen, asked):
    """Both have nine steps; one that gives all of them leaves nothing to ask of the other."""
    places = []

    def offered(stage, place, *_):
        places.append(place.name)
        found = given[place.name]
        return found if isinstance(found, str) else trunks.Donor(place, found, found, -1, (), 9)

    monkeypatch.setattr(trunks, "listed", lambda *_: [(9, tmp_path / name) for name in given])
    monkeypatch.setattr(rewarding, "_offered", offered)
    spec = {"trunk": {"unrewarded": "0"}}
    found = rewarding.find(tmp_path / "new", spec, overridden(*TINY), logging.getLogger("test"))
    assert (found and found.stage.name, len(places)) == (chosen, asked)


@pytest.mark.parametrize(("override", "decides"), [
    ("algorithm.max_resample_rounds=1", True),
    ("buffer.explorer_input.taskset.data_selector.selector_type=solve_rate_pools", True),
    ("buffer.trainer_input.experience_buffer.replay_buffer.enable=true", True),
    ("algorithm.repeat_times=2", False)])
def test_rewards_decide_what_is_explored(override, decides):
    assert rewarding.decide(overridden(*TINY, override)) == decides


def test_an_advantage_with_a_state_is_uncertain_from_the_first_step_that_reads_another_reward(tmp_path, context_of):
    """The baselines of rae at step 3 are those that steps 1 and 2 left."""
    context = context_of(tmp_path / "rft", *SMALL, "algorithm.algorithm_type=rae")
    for number in range(1, 5):
        place = tables.step_file(tmp_path / "donor", "steps", number)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    assert rewarded_again._other_batch(context, tmp_path / "donor", 3) == (3, False)
