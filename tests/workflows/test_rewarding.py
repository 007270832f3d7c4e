"""Rewards of attempts: the sum of components, and every way to fail is a row with its reason."""

import functools

import pytest

from workflows import runner
from workflows.prompts import turns_of
from workflows.rewards import Rule
from workflows.single_turn import Trajectory


def rewarded(function, *responses, retries=0, **arguments):
    outcomes = [runner.Outcome("ok", trajectory=Trajectory([1], [2], [-1.0], [1], "stop"), response=r)
                for r in responses]
    truths = [f"truth of {r}" for r in responses]
    prompts = [turns_of("question", None)] * len(responses)
    runner.reward(outcomes, prompts, truths, [Rule(function, arguments, retries)])
    return outcomes


def test_the_reward_is_the_sum_of_its_components():
    def function(response, answer, bonus=0.0):
        assert answer == f"truth of {response}"
        return {"accuracy": int(response == "x"), "bonus": bonus}

    right, wrong = rewarded(function, "x", "y", bonus=0.25)
    assert (right.reward, right.accuracy, right.components) == (1.25, 1.0, {"accuracy": 1.0, "bonus": 0.25})
    assert (wrong.reward, wrong.accuracy) == (0.25, 0.0)


def test_a_reward_without_accuracy_has_none():
    (outcome,) = rewarded(lambda response, answer: {"style": -0.5}, "x")
    assert (outcome.reward, outcome.accuracy) == (-0.5, None)


def test_a_reward_that_raises_keeps_its_secrets_out_of_the_row(monkeypatch):
    monkeypatch.setenv("OURO_TEST_TOKEN", "hush-hush")

    def judge(response, answer):
        raise PermissionError("401 of hush-hush")

    (outcome,) = rewarded(judge, "x")
    assert outcome.reason == "judge raised PermissionError: 401 of ***"


class Judge:
    """A reward function that is no function, and has no __name__."""

    def __call__(self, response, answer):
        raise ValueError("offline")


def failing(value):
    def judge(response, answer):
        return value

    return judge


@pytest.mark.parametrize(("function", "reason"), [
    (failing({"accuracy": float("nan")}), "judge returned accuracy=nan"),
    (failing({"accuracy": 1.0, "style": float("inf")}), "judge returned style=inf"),
    (failing({}), "judge returned no components"), (failing(None), "judge raised AttributeError"),
    (failing(1.0), "judge raised AttributeError"), (failing({"accuracy": "much"}), "judge raised ValueError"),
    (lambda response, answer: 1 / 0, "raised ZeroDivisionError: division by zero"),
    (Judge(), "Judge raised ValueError: offline"),
    (functools.partial(failing, 3), "partial raised TypeError"), (dict, "raised TypeError")])
def test_a_reward_that_fails_is_a_row_with_its_reason(function, reason):
    (outcome,) = rewarded(function, "x")
    assert outcome.status == "reward_failed"
    assert reason in outcome.reason
    assert (outcome.reward, outcome.accuracy, outcome.components) == (None, None, {})
    assert outcome.trajectory is not None  # the row keeps its tokens


@pytest.mark.parametrize(("retries", "status", "calls"), [
    (0, "reward_failed", 1), (1, "reward_failed", 2), (2, "ok", 3), (9, "ok", 3)])
def test_a_reward_that_raises_is_tried_again(retries, status, calls):
    seen = []

    def works_at_the_third(response, answer):
        seen.append(response)
        if len(seen) < 3:
            raise TimeoutError("busy")
        return {"accuracy": 1.0}

    (outcome,) = rewarded(works_at_the_third, "x", retries=retries)
    assert (outcome.status, len(seen)) == (status, calls)


def test_what_failed_before_is_not_rewarded():
    outcome = runner.Outcome("prompt_too_long", "long")
    runner.reward([outcome], [[]], ["1"], [lambda questions, responses, answers, lengths: pytest.fail("asked")])
    assert (outcome.status, outcome.reason) == ("prompt_too_long", "long")
