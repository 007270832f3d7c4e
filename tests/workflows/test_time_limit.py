"""User code that takes too long: its attempt fails at the limit, the others are undisturbed."""

import asyncio
import inspect
import re
import time

import pytest

from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.attempts.time_limit import TimedOut, limited, limited_workflow
from ouroboros.workflows.attempts.user_reward import Rule
from ouroboros.workflows.protocol.engine import BatchEngine, Reply
from ouroboros.workflows.protocol.outcomes import Sampling
from ouroboros.workflows.protocol.trajectory import Trajectory
from tests.golden.messages import refuses

LIMIT = 0.3
REASON = r"timed out after 0\.3 s \(explorer\.max_timeout\)"


def sleeps(response, answer):
    time.sleep(30 if response == "slow" else 0)
    return 1.0


def loops(response, answer):
    while response == "slow":
        pass
    return 1.0


def swallows(response, answer):
    try:
        return sleeps(response, answer)
    except Exception:
        return 0.0


def matches(response, answer):
    return 1.0 if response != "slow" else re.match(r"(a+)+$", "a" * 60 + "b") or 0.0


async def awaits(response, answer):
    await asyncio.sleep(30 if response == "slow" else 0)
    return 1.0


@pytest.mark.parametrize("function", [sleeps, loops, swallows, matches, awaits])
def test_a_call_that_does_not_end_fails_alone_and_names_its_limit(function):
    begin = time.monotonic()
    found = Rule(limited(function, LIMIT), {}, 0)([[]] * 3, ["fast", "slow", "fast"], [""] * 3, [1] * 3)
    assert (found[0], found[2]) == ({"reward": 1.0}, {"reward": 1.0})
    assert re.match(rf"{function.__name__} raised TimedOut: {REASON}", found[1])
    assert LIMIT <= time.monotonic() - begin < 10


def test_without_a_limit_nothing_is_wrapped():
    assert limited(sleeps, None) is sleeps
    assert limited_workflow(sleeps, None) is sleeps
    assert str(inspect.signature(limited(sleeps, 1.0))) == "(response, answer)"


def test_the_inner_of_two_limits_ends_the_inner_code_alone():
    def outer():
        with pytest.raises(TimedOut):
            limited(sleeps, 0.1)("slow", "")
        return "went on"

    assert limited(outer, 5.0)() == "went on"


def test_the_outer_of_two_limits_ends_code_whose_own_limit_is_longer():
    with refuses(TimedOut, "0.2"):
        limited(lambda: limited(sleeps, 20.0)("slow", ""), 0.2)()


class Slow(BatchEngine):
    """Answers with one token, slowly: its time is not the workflow's."""

    def answer(self, requests):
        time.sleep(LIMIT)
        return [Reply([5], [-0.5], "stop") for _ in requests]


def two_turns(seconds):
    """A workflow whose code takes `seconds` before each of its two turns."""
    def workflow(prompt):
        for _ in range(2):
            time.sleep(seconds)
            reply = yield prompt
        return Trajectory(prompt, reply.tokens, reply.logprobs, [1], reply.finish_reason)

    return workflow


def test_an_attempt_has_the_limit_for_all_of_its_turns_without_the_engines_time():
    each = [limited_workflow(two_turns(seconds), LIMIT) for seconds in (0.0, 0.2, 30.0, 0.05)]
    sampling = Sampling(1.0, 1.0, -1, 8, 8, 16)
    found = roll_out(Slow(), each, [[1, 2]] * 4, [0, 1, 2, 3], [sampling] * 4)
    assert [one.status for one in found] == ["ok", "workflow_failed", "workflow_failed", "ok"]
    assert all(re.search(f"workflow {REASON}", found[i].reason) for i in (1, 2))  # with the function's name
