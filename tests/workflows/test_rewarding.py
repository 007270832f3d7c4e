"""Rewards of attempts: the sum of components, and every way to fail is a row with its reason."""

import asyncio
import functools
import math
import signal
import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from ouroboros.pipeline.job.ending import Stopped
from ouroboros.workflows.attempts import user_reward
from ouroboros.workflows.attempts.time_limit import limited
from ouroboros.workflows.attempts.user_reward import Rule
from ouroboros.workflows.protocol.outcomes import Outcome, add_rewards
from ouroboros.workflows.protocol.prompts import turns_of
from ouroboros.workflows.single_turn import Trajectory
from tests.golden.messages import wording


def rewarded(function, *responses, retries=0, **arguments):
    outcomes = [Outcome("ok", trajectory=Trajectory([1], [2], [-1.0], [1], "stop"), response=r) for r in responses]
    truths = [f"truth of {r}" for r in responses]
    prompts = [turns_of("question", None)] * len(responses)
    add_rewards(outcomes, prompts, truths, [Rule(function, arguments, retries)])
    return outcomes


def test_the_reward_is_the_sum_of_its_components():
    def function(response, answer, bonus=0.0):
        assert answer == f"truth of {response}"
        return {"accuracy": int(response == "x"), "bonus": bonus}

    right, wrong = rewarded(function, "x", "y", bonus=0.25)
    assert (right.reward, right.accuracy, right.components) == (1.25, 1.0, {"accuracy": 1.0, "bonus": 0.25})
    assert (wrong.reward, wrong.accuracy) == (0.25, 0.0)


def test_a_reward_that_raises_keeps_its_secrets_out_of_the_row(monkeypatch):
    monkeypatch.setenv("OURO_TEST_TOKEN", "hush-hush")

    def judge(response, answer):
        raise PermissionError("401 of hush-hush")

    (outcome,) = rewarded(judge, "x")
    line = judge.__code__.co_firstlineno + 1
    wording(outcome.reason, "PermissionError: 401", f"tests/workflows/test_rewarding.py:{line}", "judge")


def of_tokens(function, *masks, **arguments):
    """Outcomes of responses whose tokens are 10, 11, ..., with these action masks."""
    outcomes = [Outcome("ok", trajectory=Trajectory([1], [10 + i for i in range(len(mask))], [-1.0] * len(mask), mask,
                                                    "stop"), response="r") for mask in masks]
    add_rewards(outcomes, [turns_of("q", None)] * len(masks), ["t"] * len(masks), [
        Rule(one, arguments, 0, one.__name__) for one in (function if isinstance(function, list) else [function])])
    return outcomes


def test_rewards_of_single_tokens_stand_on_the_tokens_and_those_of_the_response_on_its_last_action():
    """0.5 and 0.25 of the tokens, 1 of the whole: 0.5, then 1.25; nothing at the token of the environment."""
    def score(response, answer):
        return {"steps": np.array([0.5, 0.25]), "accuracy": 1}

    (one, other) = of_tokens(score, [1, 0, 1], [1, 1, 0])
    assert (one.reward, one.components) == (1.75, {"steps": 0.75, "accuracy": 1.0})
    assert (one.token_rewards, other.token_rewards) == ([0.5, 0.0, 1.25], [0.5, 1.25, 0.0])


def test_several_functions_may_reward_tokens_or_not():
    def dense(response, answer):
        return [1.0, 2.0]

    def other(response, answer):
        return (0.5, -0.5)

    def whole(response, answer):
        return -1.0

    assert of_tokens([dense, other, whole], [1, 1])[0].token_rewards == [1.5, 0.5]
    assert of_tokens(whole, [1, 1])[0].token_rewards is None


@pytest.mark.parametrize("given", [[1.0], [1.0, 2.0, 3.0], [], [1.0, math.nan], [1.0, "x"], [[1.0], [2.0]]])
def test_a_list_that_is_no_number_for_each_token_is_a_failed_row(given):
    (outcome,) = of_tokens(lambda response, answer: given, [1, 0, 1])
    assert (outcome.status, outcome.reward, outcome.token_rewards) == ("reward_failed", None, None)


def test_a_function_may_ask_for_the_ids_of_the_sampled_tokens():
    def score(response, answer, completion_ids, bonus=0.0):
        return [token + bonus for token in completion_ids]

    def together(completions, answers, completion_ids):
        return [[float(token) for token in one] for one in completion_ids]

    def of_trl(completions, answers, **kwargs):
        return together(completions, answers, kwargs["completion_ids"])

    for function, more in ((score, {"bonus": 0.0}), (together, {}), (of_trl, {})):
        found = of_tokens(function, [1, 0, 1], [0, 1, 1], **more)
        assert [one.token_rewards for one in found] == [[10.0, 0.0, 12.0], [0.0, 11.0, 12.0]]


def test_numbers_that_cannot_be_summed_are_an_error_line_where_no_length_is_known():
    for given in ({"a": [1, 2], "b": [1]}, {"a": [1e308, 1e308, -1e308]}, {"a": [math.inf, -math.inf]},
                  {"a": [1e308, -1e308], "b": [1e308, -1e308]}, 10**5000, {"a": 10**5000}):
        assert isinstance(Rule(len, {}, 0).read(given), str)


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
    (failing({}), "judge returned no components"), (failing(None), "no reward function applies to the response"),
    (failing({"style": None}), "no reward function applies to the response"),
    (failing({"accuracy": "0.5"}), "judge returned accuracy=0.5 (str); needed a finite number,"),
    (failing({3: 1.0}), "judge returned 3=1.0 (float)"), (failing("good"), "judge returned good (str)"),
    (failing(["x"]), "judge returned ['x'] (list)"), (failing(math.nan), "judge returned nan (float)"),
    (failing(10**400), "judge returned 1000"), (failing(2j), "judge returned 2j (complex)"),
    (failing(np.array([[1.0, 2.0]])), "judge returned [[1. 2.]] (ndarray)"),
    (failing(np.float32("inf")), "judge returned inf (float32)"),
    (lambda response, answer: 1 / 0, "raised ZeroDivisionError: division by zero"),
    (Judge(), "Judge raised ValueError: offline"),
    (functools.partial(failing, 3), "partial raised TypeError"), (dict, "raised TypeError")])
def test_a_reward_that_fails_is_a_row_with_its_reason(function, reason):
    (outcome,) = rewarded(function, "x")
    assert outcome.status == "reward_failed"
    assert reason in outcome.reason
    assert (outcome.reward, outcome.accuracy, outcome.components) == (None, None, {})
    assert outcome.trajectory is not None  # the row keeps its tokens


def exits(response, answer):
    if response == "bad":
        sys.exit(f"no licence for {response}")
    return 1.0


def interrupts(response, answer):
    if response == "bad":
        raise KeyboardInterrupt("no licence for bad")
    return 1.0


async def exits_late(response, answer):
    await asyncio.sleep(0)
    return exits(response, answer)


async def exits_in_a_task(response, answer):
    return await asyncio.create_task(exits_late(response, answer)) if response == "bad" else 1.0


@pytest.mark.parametrize("limit", [None, 60.0])
@pytest.mark.parametrize("function", [exits, interrupts, exits_late])
def test_a_reward_that_would_end_the_process_is_a_row_and_the_others_go_on(function, limit):
    good, bad, last = rewarded(limited(function, limit), "good", "bad", "good", retries=1)
    assert (good.reward, last.reward) == (1.0, 1.0)
    assert bad.status == "reward_failed"
    wording(bad.reason, f"{function.__name__} raised", "tests/workflows/test_rewarding.py", ")")


def test_where_a_task_of_a_reward_leaves_its_rows_fail_and_the_next_step_goes_on():
    rule = Rule(exits_in_a_task, {}, 0)
    (found,) = rule([[]], ["bad"], [""], [1])
    wording(found, "exits_in_a_task", "SystemExit", "tests/workflows/")
    assert rule([[]], ["good"], [""], [1]) == [{"reward": 1.0}]


def test_a_request_to_end_the_stage_passes_through_a_reward():
    def asked(response, answer):
        raise Stopped(signal.SIGTERM)

    async def asked_late(response, answer):
        asked(response, answer)

    for function in (asked, asked_late, limited(asked_late, 60.0)):
        with pytest.raises(Stopped):
            rewarded(function, "x")


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


@pytest.mark.parametrize(("answer", "reward"), [
    (0.5, 0.5), (2, 2.0), (True, 1.0), (np.float32(0.25), 0.25), (np.bool_(True), 1.0), (np.array(0.5), 0.5),
    (Fraction(1, 4), 0.25), (Decimal("0.75"), 0.75), (0, 0.0)])
def test_a_plain_number_is_the_component_reward(answer, reward):
    (outcome,) = rewarded(failing(answer), "x")
    assert (outcome.status, outcome.reward, outcome.components) == ("ok", reward, {"reward": reward})
    assert outcome.accuracy is None


def test_tensors_are_numbers_too():
    import torch

    def batch(responses):
        return torch.tensor([0.5, 2.0], dtype=torch.bfloat16)

    assert rewarded(failing(torch.tensor(0.5)), "x")[0].reward == 0.5
    assert [o.reward for o in rewarded(batch, "x", "y")] == [0.5, 2.0]
    assert rewarded(failing(torch.tensor([[0.5, 2]])), "x")[0].status == "reward_failed"


@pytest.mark.parametrize(("given", "reward", "accuracy"), [
    ({"accuracy": 1, "style": None}, 1.0, 1.0), ({"style": -0.5}, -0.5, None)])
def test_a_component_that_does_not_apply_is_left_out(given, reward, accuracy):
    (outcome,) = rewarded(failing(given), "x")
    assert (outcome.reward, outcome.accuracy) == (reward, accuracy)
    assert outcome.components == {name: value for name, value in given.items() if value is not None}


def test_a_function_of_all_responses_is_called_once_and_its_none_is_left_out():
    calls = []

    def judge(prompts, completions, ground_truth, scale=1.0, **more):
        calls.append((prompts, completions, ground_truth, more))
        return np.array([len(one) * scale for one in completions]) if scale > 1 else (1.0, None, {"accuracy": 0})

    outcomes = rewarded(judge, "x", "yy", "z", bonus=3)
    [(prompts, completions, truths, more)] = calls
    assert (prompts, completions) == (["question"] * 3, ["x", "yy", "z"])
    assert truths == ["truth of x", "truth of yy", "truth of z"]
    assert {name: more[name] for name in ("bonus", "completion_ids")} == {"bonus": 3, "completion_ids": [[2]] * 3}
    assert [o.components for o in outcomes] == [{"reward": 1.0}, {}, {"accuracy": 0.0}]
    assert [o.status for o in outcomes] == ["ok", "reward_failed", "ok"]
    assert [o.reward for o in rewarded(judge, "x", "yy", scale=2.0)] == [2.0, 4.0]


@pytest.mark.parametrize(("answer", "reason"), [
    ([1.0], "judge returned a list of 1 for 2 responses; needed a list with one for each"),
    (0.5, "judge returned 0.5 (float) for 2 responses"), ({"accuracy": [1, 0]}, "judge returned {'accuracy': [1, 0]}"),
    (np.zeros((2, 1, 1)), "judge returned [[0.0]] (list); needed"), ("ab", "judge returned ab (str) for 2 responses"),
    (None, "judge returned None (NoneType) for 2")])
def test_a_wrong_answer_for_a_batch_fails_its_rows(answer, reason):
    def judge(responses):
        return answer

    outcomes = rewarded(judge, "x", "y")
    assert {o.status for o in outcomes} == {"reward_failed"}
    assert all(o.reason.startswith(reason) for o in outcomes)


def test_a_batch_that_raises_is_called_again_and_fails_all_its_rows_in_the_end():
    calls = []

    def judge(responses, answers):
        calls.append(answers)
        raise TimeoutError("busy")

    outcomes = rewarded(judge, "x", "y", retries=2)
    assert calls == [["truth of x", "truth of y"]] * 3
    assert all("TimeoutError: busy (tests/workflows/" in o.reason for o in outcomes)


def test_async_calls_of_a_step_are_made_together_in_order_and_within_a_bound(monkeypatch):
    """Five calls with room for three; the first is the last to end."""
    monkeypatch.setattr(user_reward, "CONCURRENT", 3)
    under_way, most, loops = 0, 0, set()

    async def judge(response, answer):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        loops.add(id(asyncio.get_running_loop()))
        await asyncio.sleep(0.05 if response == "0" else 0.01)
        under_way -= 1
        return None if response == "3" else {"accuracy": 1 / 0} if response == "4" else float(response)

    rule = Rule(judge, {}, 0)
    for _ in range(2):  # as in two steps: a client of the function stays with its loop
        found = rule([[]] * 5, ["0", "1", "2", "3", "4"], [""] * 5, [1] * 5)
        assert found[:4] == [{"reward": 0.0}, {"reward": 1.0}, {"reward": 2.0}, {}]
        wording(found[4], "ZeroDivisionError", "tests/workflows/")
    assert (most, len(loops)) == (3, 1)


def test_an_async_reward_that_raises_is_tried_again_and_a_batch_may_be_async():
    seen = []

    async def judge(response, answer):
        seen.append(response)
        if len(seen) < 3:
            raise TimeoutError("busy")
        return 1.0

    async def batch(completions, answers):
        return [float(answer == f"truth of {one}") for one, answer in zip(completions, answers, strict=True)]

    assert [o.reward for o in rewarded(judge, "x", "y", retries=1)] == [1.0, 1.0]
    assert seen == ["x", "y", "x", "y"]
    assert [o.reward for o in rewarded(batch, "x", "y")] == [1.0, 1.0]


def test_what_failed_before_is_not_rewarded():
    outcome = Outcome("prompt_too_long", "long")
    add_rewards([outcome], [[]], ["1"], [lambda questions, responses, answers, lengths: pytest.fail("asked")])
    assert (outcome.status, outcome.reason) == ("prompt_too_long", "long")
