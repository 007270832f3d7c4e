"""Attempts against a scripted engine: every way to fail is a row with its reason."""

import asyncio
import hashlib
import signal
from contextlib import nullcontext

import pytest

from ouroboros.operators.reward import load_reward
from ouroboros.pipeline.job.ending import Stopped
from ouroboros.pipeline.store import records
from ouroboros.pipeline.store.errors import ConfigError, StageError
from ouroboros.workflows.attempts import schedule
from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.engines.open import ENGINES, open_engine
from ouroboros.workflows.engines.scripted_engine import ScriptedEngine
from ouroboros.workflows.protocol.engine import BatchEngine, Reply, Request
from ouroboros.workflows.protocol.outcomes import Outcome, Sampling, add_rewards, check_failures, decode
from ouroboros.workflows.protocol.seeds import request_seed
from ouroboros.workflows.single_turn import Trajectory, load_workflow, simple_workflow
from tests.factories import row
from tests.golden.messages import refuses, wording

EOS = 1
SAMPLING = Sampling(temperature=0.7, top_p=0.9, top_k=5, max_prompt_tokens=4, max_response_tokens=3, max_model_len=9)


class Recording(ScriptedEngine):
    """Answers [9, EOS]; `calls` are the lists of requests it got."""

    def __init__(self):
        BatchEngine.__init__(self)
        self.script, self.default, self.ends, self.calls = {"2 2": [8]}, [9, EOS], [EOS], []

    def submit(self, requests):
        self.calls.append(list(requests))
        return super().submit(requests)


def roll(workflow, prompts, engine=None):
    seeds = list(range(100, 100 + len(prompts)))
    return roll_out(engine or Recording(), [workflow] * len(prompts), prompts, seeds, [SAMPLING] * len(prompts))


def test_single_turns_are_one_call_and_come_back_in_order():
    engine = Recording()
    outcomes = roll(simple_workflow, [[5], [2, 2], [5]], engine)
    assert [o.trajectory.response_tokens for o in outcomes] == [[9, EOS], [8], [9, EOS]]
    assert outcomes[0].trajectory == Trajectory([5], [9, EOS], [-1.0, -1.0], [1, 1], "stop")
    assert outcomes[1].trajectory.finish_reason == "length"
    (requests,) = engine.calls
    assert [r.seed for r in requests] == [100, 101, 102]
    assert (requests[0].temperature, requests[0].top_p, requests[0].top_k, requests[0].max_tokens) == (0.7, 0.9, 5, 3)


def test_a_failed_workflow_is_tried_again_with_a_seed_of_its_own():
    """It raises twice and answers the third time: two further attempts are enough, one is not."""
    begun = []

    def faulty(prompt):
        begun.append(prompt)
        if prompt == [6] and begun.count([6]) < 3:
            raise ConnectionError("down")
        return (yield from simple_workflow(prompt))

    def again(retries):
        begun.clear()
        engine = Recording()
        found = roll_out(engine, [faulty] * 2, [[5], [6]], [100, 101], [SAMPLING] * 2, retries=retries)
        return [one.status for one in found], begun.count([5]), begun.count([6]), [
            request.seed for call in engine.calls for request in call]

    assert again(0) == (["ok", "workflow_failed"], 1, 1, [100])
    assert again(1)[:3] == (["ok", "workflow_failed"], 1, 2)
    statuses, once, thrice, seeds = again(2)
    assert (statuses, once, thrice, seeds[0], len(set(seeds))) == (["ok", "ok"], 1, 3, 100, 2)
    assert again(2)[3] == seeds
    assert again(9)[2] == 3


def test_it_reports_how_far_the_attempts_are(monkeypatch):
    """Three attempts, two at a time, one answered at a time: none reported before the first request."""
    monkeypatch.setattr(schedule, "REPORT_SECONDS", -1)
    engine, found = Recording(), []
    engine.batch = 1
    roll_out(engine, [simple_workflow] * 3, [[5]] * 3, [1, 2, 3], [SAMPLING] * 3, 2, report=found.append)
    assert [(one.attempts, one.ended, one.ask, one.call) for one in found] == [(3, 0, 0, 0), (3, 1, 1, 0), (3, 2, 1, 0)]
    wording(str(found[1]), "1 of 3", "1 ask")


def test_a_prompt_over_the_limit_is_not_asked_and_the_others_keep_their_seeds():
    engine = Recording()
    outcomes = roll(simple_workflow, [[5] * 5, [5] * 4], engine)
    assert [o.status for o in outcomes] == ["prompt_too_long", "ok"]
    wording(outcomes[0].reason, "5 prompt", "model.max_prompt_tokens=4")
    assert (outcomes[0].trajectory, outcomes[0].reward, outcomes[0].accuracy) == (None, None, None)
    assert [r.seed for r in engine.calls[0]] == [101]
    assert roll(simple_workflow, [], engine) == []
    roll(simple_workflow, [[5] * 5], engine)
    assert len(engine.calls) == 1  # nothing that can be asked costs no call


def test_a_workflow_that_asks_for_ever_fails_alone():
    """Each of its 1,000 calls is one of the engine's; the other attempt has one."""
    def endless(prompt):
        while prompt == [5]:
            yield prompt
        return simple(prompt, (yield prompt))

    engine = Recording()
    first, second = roll(endless, [[5], [6]], engine)
    assert first.status == "workflow_failed"
    wording(first.reason, "1000")
    assert second.status == "ok"
    assert sum(map(len, engine.calls)) == 1001


def test_a_list_that_a_workflow_extends_is_asked_as_it_was():
    def grows(prompt):
        context = [*prompt]
        reply = yield context
        context += reply.tokens
        return simple(context, (yield context))

    engine = Recording()
    roll(grows, [[5]], engine)
    assert [[one.prompt_tokens for one in call] for call in engine.calls] == [[[5]], [[5, 9, EOS]]]


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


def test_a_reward_sees_the_models_turns_and_the_row_keeps_all():
    class Letters:
        def batch_decode(self, sequences, skip_special_tokens):
            return ["".join("abcdefghi"[token] for token in tokens) for tokens in sequences]

    mixed = Outcome("ok", trajectory=Trajectory([0], [1, 2, 3, 4, 5], [0.0] * 5, [1, 1, 0, 0, 1], "stop"))
    plain = Outcome("ok", trajectory=Trajectory([0], [1, 2], [0.0] * 2, [1, 1], "stop"))
    seen = []
    decode([mixed, plain], Letters())
    add_rewards([mixed, plain], [[], []], ["", ""],
                  [lambda prompts, responses, *rest: seen.extend(responses) or [{"reward": 1.0}] * 2])
    assert seen == ["bc\nf", "bc"]
    assert (mixed.response, plain.response) == ("bcdef", "bc")


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


def raising(error, late=True):
    """A workflow that ends in an error, at once or after its first reply."""
    def workflow(prompt):
        if late:
            yield prompt
        raise error

    return workflow


def returning(make):
    """A workflow that returns make(prompt, reply)."""
    def workflow(prompt):
        return make(prompt, (yield prompt))

    return workflow


def asking(then):
    """A workflow whose second prompt is `then`."""
    def workflow(prompt):
        yield prompt
        yield then

    return workflow


def no_generator(prompt):
    raise OSError("not even begun")


@pytest.mark.parametrize(("workflow", "reason"), [
    (raising(KeyError("tool")), "KeyError: 'tool'"),
    (raising(RuntimeError("no sandbox"), late=False), "RuntimeError: no sandbox"),
    (raising(SystemExit(0)), "SystemExit: 0 (tests/workflows/test_runner.py:"),
    (raising(KeyboardInterrupt(), late=False), "KeyboardInterrupt (tests/workflows/"),
    (raising(asyncio.CancelledError("enough")), "CancelledError: enough (tests/workflows/test_runner.py:"),
    (no_generator, "OSError: not even begun"), (lambda prompt: 3, "TypeError"),
    (returning(lambda prompt, reply: None), "returned NoneType, needed a Trajectory"),
    (returning(lambda prompt, reply: Trajectory(prompt, reply.tokens, reply.logprobs[:1], [1, 1], "stop")),
     "2 response tokens, 1 log-probs and an action mask of 2; needed one length"),
    (asking([5] * 9), "wants 9 tokens continued; needed at least 1, and fewer than 9"),
    (asking([]), "wants 0 tokens continued"),
    (asking("what now?"), "yielded str 'what now?'; needed a list of token ids"),
    (returning(lambda prompt, reply: Trajectory([5] * 6, [7] * 4, [-1.0] * 4, [1] * 4, "stop")),
     "returned 6 prompt and 4 response tokens; needed at least 1 of each and at most 9 together"),
    (returning(lambda prompt, reply: simple([], reply)), "returned 0 prompt and 2 response tokens"),
    (returning(lambda prompt, reply: Trajectory(prompt, [], [], [], "stop")),
     "0 response tokens, 0 log-probs and an action mask of 0; needed one length, at least 1")])
def test_a_failing_workflow_is_a_row_with_its_reason(workflow, reason):
    def mixed(prompt):
        return simple_workflow(prompt) if prompt == [5] else workflow(prompt)

    bad, good = roll(mixed, [[3], [5]])
    assert (bad.status, good.status) == ("workflow_failed", "ok")
    assert reason in bad.reason
    assert bad.trajectory is None


def test_a_request_to_end_the_stage_is_no_failing_workflow():
    with pytest.raises(Stopped):
        roll(raising(Stopped(signal.SIGTERM)), [[3]])


def test_the_reason_of_a_row_has_no_secret(monkeypatch):
    monkeypatch.setenv("OURO_TEST_TOKEN", "hush-hush")

    def refused(prompt):
        raise PermissionError("401 of hush-hush")
        yield prompt

    (outcome,) = roll(refused, [[3]])
    line = refused.__code__.co_firstlineno + 1
    wording(outcome.reason, "PermissionError: 401", f"tests/workflows/test_runner.py:{line}", "refused")


def rows(*statuses):
    return [row(records.Experience, task_id=f"t{i}", status=s, reason=f"why {i}") for i, s in enumerate(statuses)]


@pytest.mark.parametrize(("counts", "allowed", "words"), [
    ({"reward_failed": 1, "workflow_failed": 1, "ok": 18}, 0.1, None),
    ({"reward_failed": 2, "workflow_failed": 1, "ok": 17}, 0.1, ("3 of 20", "10%", "t0", "why 0")),
    ({"ok": 1, "reward_failed": 1}, 0.0, ("1 of 2",)), ({"ok": 1, "reward_failed": 1, "late": 18}, 0.1, ("1 of 2",)),
    ({"ok": 1, "late": 2}, 0.0, None), ({"prompt_too_long": 5}, 0.0, None)])
def test_more_failures_than_allowed_stop_the_stage_and_show_the_first(counts, allowed, words):
    """Late rows count neither as failures nor as others, and too long prompts are no failures."""
    made = rows(*(status for status, count in counts.items() for _ in range(count)))
    with refuses(StageError, *words) if words else nullcontext():
        check_failures(made, allowed)


def test_a_workflow_by_name_or_by_path():
    assert load_workflow("simple_workflow") is simple_workflow
    assert load_workflow("ouroboros.workflows.single_turn:simple_workflow") is simple_workflow
    with refuses(ConfigError, "'simple_worflow'", "'simple_workflow'"):
        load_workflow("simple_worflow")
    with refuses(ConfigError, "cannot be imported"):
        load_workflow("ouroboros.workflows.single_turn:nothing")
    assert load_reward("countdown_reward")


def test_an_unknown_engine_lists_those_there_are(settings):
    config = settings()
    config.explorer.rollout_model.engine_type = "vlm"
    with refuses(ConfigError, "'vllm'"):
        open_engine(None, config, [EOS])
    config.explorer.rollout_model.engine_type = "scripted"
    engine = open_engine(None, config, [EOS])
    (reply,) = engine.generate([Request([5], 3, 1.0, 1.0, -1, 0)])
    assert (reply.tokens, reply.finish_reason) == ([EOS], "stop")
    assert engine.score([[1, 2, 3]]) == [[-1.0, -1.0]]
    assert set(ENGINES) == {"openai", "scripted", "transformers", "vllm"}


def test_no_two_requests_share_a_seed_and_each_is_what_it_was():
    seeds = {request_seed(seed, step, slot) for seed in range(3) for step in range(10) for slot in range(100)}
    assert len(seeds) == 3000
    assert max(seeds) < 2**48
    assert request_seed(1, 2, 3) == request_seed(1, 2, 3)
    # sha256("1/2/3") begins with these six bytes
    assert f"{request_seed(1, 2, 3):012x}" == hashlib.sha256(b"1/2/3").hexdigest()[:12]
