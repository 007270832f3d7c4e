"""Attempts against a scripted engine: every way to fail is a row with its reason."""

import functools
import hashlib

import pytest

from operators.reward import load_reward
from pipeline.errors import ConfigError
from workflows import runner
from workflows.engine import ENGINES, Reply, open_engine
from workflows.prompts import prompt_text, prompt_tokens, response_tokens, turns_of
from workflows.rewards import Rule
from workflows.scripted_engine import ScriptedEngine
from workflows.seeds import request_seed
from workflows.single_turn import Trajectory, load_workflow, simple_workflow

EOS = 1
SAMPLING = runner.Sampling(temperature=0.7, top_p=0.9, top_k=5, max_prompt_tokens=4, max_response_tokens=3,
                          max_model_len=9)


class Recording(ScriptedEngine):
    """Answers [9, EOS]; `calls` are the lists of requests it got."""

    def __init__(self):
        self.script, self.default, self.eos, self.calls = {"2 2": [8]}, [9, EOS], EOS, []

    def generate(self, requests):
        self.calls.append(list(requests))
        return super().generate(requests)


def roll(workflow, prompts, engine=None):
    seeds = list(range(100, 100 + len(prompts)))
    return runner.roll_out(engine or Recording(), [workflow] * len(prompts), prompts, seeds, [SAMPLING] * len(prompts))


# --------------------------------------------------------------------------------------------------------- attempts


def test_single_turns_are_one_call_and_come_back_in_order():
    engine = Recording()
    outcomes = roll(simple_workflow, [[5], [2, 2], [5]], engine)
    assert [o.trajectory.response_tokens for o in outcomes] == [[9, EOS], [8], [9, EOS]]
    assert outcomes[0].trajectory == Trajectory([5], [9, EOS], [-1.0, -1.0], [1, 1], "stop")
    assert outcomes[1].trajectory.finish_reason == "length"
    (requests,) = engine.calls
    assert [r.seed for r in requests] == [100, 101, 102]
    assert (requests[0].temperature, requests[0].top_p, requests[0].top_k, requests[0].max_tokens) == (0.7, 0.9, 5, 3)


def test_a_prompt_over_the_limit_is_not_asked_and_the_others_keep_their_seeds():
    engine = Recording()
    outcomes = roll(simple_workflow, [[5] * 5, [5] * 4], engine)
    assert [o.status for o in outcomes] == ["prompt_too_long", "ok"]
    assert outcomes[0].reason == "5 prompt tokens, limit model.max_prompt_tokens=4"
    assert (outcomes[0].trajectory, outcomes[0].reward, outcomes[0].accuracy) == (None, None, None)
    assert [r.seed for r in engine.calls[0]] == [101]


def test_no_prompt_that_can_be_asked_costs_no_call():
    engine = Recording()
    assert roll(simple_workflow, [], engine) == []
    assert [o.status for o in roll(simple_workflow, [[5] * 5], engine)] == ["prompt_too_long"]
    assert engine.calls == []


def two_turns(prompt):
    """Asks again with the first answer put behind; only prompts that begin with 2 have a second turn."""
    first = yield prompt
    if prompt[0] != 2:
        return simple(prompt, first)
    second = yield prompt + first.tokens
    return simple(prompt, Reply(first.tokens + second.tokens, first.logprobs + second.logprobs, second.finish_reason))


def simple(prompt, reply):
    return Trajectory(prompt, reply.tokens, reply.logprobs, [1] * len(reply.tokens), reply.finish_reason)


def test_attempts_of_several_turns_advance_together():
    engine = Recording()
    outcomes = roll(two_turns, [[2, 2], [5], [2, 3]], engine)
    assert [[r.prompt_tokens for r in call] for call in engine.calls] == [
        [[2, 2], [5], [2, 3]], [[2, 2, 8], [2, 3, 9, EOS]]]
    assert [o.trajectory.response_tokens for o in outcomes] == [[8, 9, EOS], [9, EOS], [9, EOS, 9, EOS]]
    assert [[r.seed for r in call] for call in engine.calls] == [
        [100, 101, 102], [request_seed(100, 1, 0), request_seed(102, 1, 0)]]  # asked again, it draws anew


def test_a_late_turn_gets_what_room_is_left():
    """Of 9 tokens: a second turn that begins with 7 may have 2 of its 3."""
    engine = Recording()

    def long(prompt):
        yield prompt
        second = yield [5] * 7
        return simple([5] * 7, second)

    (outcome,) = roll(long, [[2]], engine)
    assert outcome.status == "ok"
    assert [call[0].max_tokens for call in engine.calls] == [3, 2]


# ------------------------------------------------------------------------------------------------- failing workflows


def raises_late(prompt):
    yield prompt
    raise KeyError("tool")


def raises_at_once(prompt):
    raise RuntimeError("no sandbox")
    yield prompt


def no_generator(prompt):
    raise OSError("not even begun")


def returns_nothing(prompt):
    yield prompt


def returns_ragged(prompt):
    reply = yield prompt
    return Trajectory(prompt, reply.tokens, reply.logprobs[:1], [1] * len(reply.tokens), "stop")


def asks_too_much(prompt):
    yield prompt
    yield [5] * 9


def asks_nothing(prompt):
    yield []


def returns_too_much(prompt):
    yield prompt
    return Trajectory([5] * 6, [7] * 4, [-1.0] * 4, [1] * 4, "stop")


def returns_no_prompt(prompt):
    reply = yield prompt
    return simple([], reply)


def returns_empty(prompt):
    yield prompt
    return Trajectory(prompt, [], [], [], "stop")


@pytest.mark.parametrize(("workflow", "reason"), [
    (raises_late, "KeyError: 'tool'"), (raises_at_once, "RuntimeError: no sandbox"),
    (no_generator, "OSError: not even begun"), (lambda prompt: 3, "TypeError"),
    (returns_nothing, "returned NoneType, needed a Trajectory"),
    (returns_ragged, "2 response tokens, 1 log-probs and an action mask of 2; needed one length"),
    (asks_too_much, "wants 9 tokens continued; needed at least 1, and fewer than 9"),
    (asks_nothing, "wants 0 tokens continued"),
    (returns_too_much, "returned 6 prompt and 4 response tokens; needed at least 1 of each and at most 9 together"),
    (returns_no_prompt, "returned 0 prompt and 2 response tokens"),
    (returns_empty, "0 response tokens, 0 log-probs and an action mask of 0; needed one length, at least 1")])
def test_a_failing_workflow_is_a_row_with_its_reason(workflow, reason):
    def mixed(prompt):
        return simple_workflow(prompt) if prompt == [5] else workflow(prompt)

    bad, good = roll(mixed, [[3], [5]])
    assert (bad.status, good.status) == ("workflow_failed", "ok")
    assert reason in bad.reason
    assert bad.trajectory is None


# ----------------------------------------------------------------------------------------------------------- rewards


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


# -------------------------------------------------------------------------------------------------- names and seeds


def test_a_workflow_by_name_or_by_path():
    assert load_workflow("simple_workflow") is simple_workflow
    assert load_workflow("workflows.single_turn:simple_workflow") is simple_workflow
    with pytest.raises(ConfigError, match=r"unknown workflow 'simple_worflow'. Did you mean 'simple_workflow'\?"):
        load_workflow("simple_worflow")
    with pytest.raises(ConfigError, match="cannot be imported"):
        load_workflow("workflows.single_turn:nothing")
    assert load_reward("countdown_reward")


def test_an_unknown_engine_lists_those_there_are(settings):
    config = settings()
    config.explorer.rollout_model.engine_type = "vlm"
    with pytest.raises(ConfigError, match=r"Did you mean 'vllm'\? Known: scripted, transformers, vllm"):
        open_engine(None, config, EOS)
    config.explorer.rollout_model.engine_type = "scripted"
    engine = open_engine(None, config, EOS)
    (reply,) = engine.generate([runner.Request([5], 3, 1.0, 1.0, -1, 0)])
    assert (reply.tokens, reply.finish_reason) == ([EOS], "stop")
    assert engine.score([[1, 2, 3]]) == [[-1.0, -1.0]]
    assert set(ENGINES) == {"scripted", "transformers", "vllm"}


def test_no_two_requests_share_a_seed_and_each_is_what_it_was():
    seeds = {request_seed(seed, step, slot) for seed in range(3) for step in range(10) for slot in range(100)}
    assert len(seeds) == 3000
    assert max(seeds) < 2**48
    assert request_seed(1, 2, 3) == request_seed(1, 2, 3)
    # sha256("1/2/3") begins with these six bytes
    assert f"{request_seed(1, 2, 3):012x}" == hashlib.sha256(b"1/2/3").hexdigest()[:12]


# ----------------------------------------------------------------------------------------------------------- prompts


class Plain:
    """A tokenizer of characters without a chat template."""

    chat_template, eos_token_id = None, 1

    def __call__(self, texts, add_special_tokens):
        return {"input_ids": [([0] if add_special_tokens else []) + [ord(c) for c in text] for text in texts]}


def test_without_a_template_the_text_is_the_prompt_with_the_tokenizer_s_own_beginning():
    assert prompt_text(Plain(), "a", None) == "a"
    assert prompt_text(Plain(), "a", "b") == "b\n\na"
    assert prompt_tokens(Plain(), ["a"]) == [[0, 97]]
    assert response_tokens(Plain(), ["a", ""]) == [[97, 1], [1]]
    assert prompt_tokens(Plain(), []) == response_tokens(Plain(), []) == []
