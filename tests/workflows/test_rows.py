"""What a reward function is given of a task's record: arguments, reserved names, columns, in this order."""

import re

import pytest

from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.workflows.attempts.user_reward import Rule
from ouroboros.workflows.protocol.outcomes import Outcome, add_rewards
from ouroboros.workflows.protocol.trajectory import Trajectory
from tests.golden.messages import refuses

PROMPT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2 + 3?"}]


def rewarded(function, *responses, form="plaintext", columns=None, **arguments):
    """The outcomes of responses to tasks whose truth is 5. columns: of the record of each; a dict: of all."""
    outcomes = [Outcome("ok", trajectory=Trajectory([1], [7, 8], [-1.0] * 2, [1, 1], "stop"), response=one)
                for one in responses]
    rows = columns if isinstance(columns, list) else [columns or {}] * len(outcomes)
    add_rewards(outcomes, [PROMPT] * len(outcomes), ["5"] * len(outcomes), [Rule(function, arguments, 0, form=form)],
                columns=rows)
    return outcomes


ROW = {"tests": [1, 2], "weight": 3, "bonus": 9, "answer": 5, "extra.index": 4}


def test_a_parameter_without_a_default_takes_its_column_and_one_with_a_default_only_where_it_is_told():
    calls = []

    def score(response, answer, tests, weight, bonus=0.5, *, level=1):
        calls.append((response, answer, tests, weight, bonus, level))
        return 1.0

    rewarded(score, "x", columns=ROW)
    rewarded(score, "x", columns=ROW, weight=2.0, level="${column:extra.index}", bonus="${column:bonus}")
    assert calls == [("x", "5", [1, 2], 3, 0.5, 1), ("x", "5", [1, 2], 2.0, 9, 4)]


def test_others_take_the_columns_that_no_parameter_has():
    def score(response, answer, bonus=0.5, **columns):
        assert (bonus, columns) == (0.5, {"tests": [1, 2], "weight": 8, "extra.index": 4})
        return 1.0

    [outcome] = rewarded(score, "x", columns=ROW, weight=8)
    assert outcome.reward == 1.0


def test_a_column_that_the_tasks_were_read_without_ends_the_stage():
    with refuses(ConfigError, "'tests'"):
        rewarded(lambda response, answer, tests: 1.0, "x", columns={"weight": 3})


# ------------------------------------------------------------ functions of TRL's form, as its documentation has them


def of_lengths(completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def of_form(completions, **kwargs):
    return [1.0 if re.match(r"^<think>.*?</think>", one[0]["content"]) else 0.0 for one in completions]


def of_truths(completions, ground_truth, **kwargs):
    return [1.0 if truth in one else 0.0 for one, truth in zip(completions, ground_truth, strict=True)]


def of_some(prompts, completions, task, **kwargs):
    return [float("5" in one) if of == "math" else None for one, of in zip(completions, task, strict=True)]


def logging_too(completions, answer, log_extra=None, log_metric=None, trainer_state=None, **kwargs):
    log_extra("answer", answer)
    log_metric("right", 1.0)
    assert trainer_state is None
    assert [*kwargs] == ["tests", "prompts", "completion_ids"]
    return [float(one == str(truth)) for one, truth in zip(completions, answer, strict=True)]


async def later(prompts, completions, **kwargs):
    return [float(prompt == "2 + 3?") for prompt in prompts]


@pytest.mark.parametrize(("function", "form", "columns", "expected"), [
    (of_lengths, "plaintext", {}, [2.0, 2.0]), (of_form, "messages", {}, [1.0, 0.0]),
    (of_truths, "plaintext", {}, [1.0, 0.0]),
    (of_some, "plaintext", [{"task": "math"}, {"task": "code", "x": 1}], [1.0, None]),
    (logging_too, "plaintext", {"answer": 6, "tests": []}, [0.0, 1.0]), (later, "plaintext", {}, [1.0, 1.0])])
def test_functions_of_trl_work_unchanged(function, form, columns, expected):
    outcomes = rewarded(function, "<think>so</think>5", "6", form=form, columns=columns)
    assert [outcome.reward for outcome in outcomes] == expected


def test_prompts_and_completions_are_messages_where_the_records_have_messages():
    def score(prompts, completions):
        assert prompts == [PROMPT]
        assert completions == [[{"role": "assistant", "content": "x"}]]
        return [0.25]

    assert rewarded(score, "x", form="messages")[0].reward == 0.25


# ----------------------------------------------------------------------- functions of the form of veRL's scorers


def last_number(solution_str, ground_truth, method="strict", format_score=0.0, score=1.0):
    found = re.findall(r"-?\d+", solution_str)
    return 0 if not found else score if found[-1] == ground_truth else format_score


def boxed(solution_str: str, ground_truth: str, strict_box_verify: bool = False) -> dict:
    right = solution_str == ground_truth
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": solution_str}


def of_source(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    assert (data_source, extra_info["index"]) == ("mine/sums", 4)
    return {"score": 0.5, "steps": 3, "details": ["no text"]}


def of_targets(solution_str, ground_truth):
    return float(solution_str in ground_truth["target"])


def of_tests(data_source, solution_str, ground_truth, extra_info):
    return extra_info == {}, [{"passed": 3}]


def of_batches(data_sources, solution_strs, ground_truths, extra_infos):
    assert (data_sources, extra_infos) == (["mine/sums"] * 2, [{}] * 2)
    return [{"score": float(one in truth), "acc": one in truth, "pred": one}
            for one, truth in zip(solution_strs, ground_truths, strict=True)]


def by_place(completion, test_cases, continuous=False):
    return completion == test_cases, None


VERL = {"data_source": "mine/sums", "extra_info": {"index": 4}}


@pytest.mark.parametrize(("function", "columns", "rewards", "accuracy", "notes"), [
    (last_number, {}, [1.0, 0.0], None, {}),
    (boxed, {}, [1.0, -1.0], 1.0, {"pred": "5"}),
    (of_source, VERL, [0.5, 0.5], None, {"steps": "3"}),
    (of_targets, {"ground_truth": {"target": ["5", "five"]}}, [1.0, 0.0], None, {}),
    (of_tests, {"data_source": "mine/sums"}, [1.0, 1.0], None, {}),
    (of_batches, {"data_source": "mine/sums", "ground_truth": ["5"]}, [1.0, 0.0], 1.0, {"pred": "5"}),
    (by_place, {}, [1.0, 0.0], None, {})])
def test_functions_of_verl_work_unchanged(function, columns, rewards, accuracy, notes):
    outcomes = rewarded(function, "5", "6", columns=columns)
    assert [outcome.reward for outcome in outcomes] == rewards
    assert (outcomes[0].accuracy, outcomes[0].notes, [*outcomes[0].components]) == (accuracy, notes, ["reward"])


@pytest.mark.parametrize("returned", [{"acc": 1.0}, {"score": 1.0, "acc": 2.0}, {"score": "x"}])
def test_a_dict_of_verl_without_its_numbers_is_a_failed_row(returned):
    [outcome] = rewarded(lambda solution_str, ground_truth: returned, "5")
    assert (outcome.status, outcome.reward, outcome.accuracy) == ("reward_failed", None, None)
