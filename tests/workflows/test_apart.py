"""A reward function that ends its process, called in processes of its own: the row fails, and the others go on."""

import inspect
import re
import time

import pytest

from ouroboros.workflows.attempts.apart import apart
from ouroboros.workflows.attempts.user_reward import Rule
from tests import ending_code
from tests.golden.messages import wording


def rule(name: str, seconds: float | None = None, retries: int = 0, **arguments) -> Rule:
    return Rule(apart(getattr(ending_code, name), f"tests.ending_code:{name}", seconds), arguments, retries)


def asked(called: Rule, *responses: str) -> list:
    return called([[]] * len(responses), responses, [""] * len(responses), [1] * len(responses))


@pytest.mark.parametrize("way", ending_code.WAYS)
def test_a_call_that_ends_its_process_fails_alone(way):
    first, bad, last = asked(rule("ends"), "good", way, "good")
    assert (first, last) == ({"reward": 1.0}, {"reward": 1.0})  # each the first one of its process
    wording(bad, "process", way)


def test_calls_share_a_process_as_long_as_it_lives_and_steps_do_too():
    called = rule("judge")
    assert asked(called, "x", "y") == [{"reward": 1.0}, {"reward": 2.0}]
    assert asked(called, "z") == [{"reward": 3.0}]
    assert called.name == "Judge"


def test_what_a_call_raises_is_told_as_in_the_process_of_the_stage():
    names = "leaves", "raises", "returns", "good"
    found, plain = asked(rule("misbehaves"), *names), asked(Rule(ending_code.misbehaves, {}, 0), *names)
    assert (found[:2], found[3]) == (plain[:2], plain[3])
    wording(found[0], "SystemExit", "tests/ending_code.py")
    assert re.match("misbehaves raised (Attribute|Pickling)Error", found[2])


def test_a_call_that_takes_too_long_fails_and_so_does_one_that_leaves_a_copy_behind():
    begin = time.monotonic()
    slow, copied, good = asked(rule("misbehaves", 0.3), "sleeps", "copies", "good")
    wording(slow, "TimedOut", "0.3", "(explorer.max_timeout)")
    wording(copied, "code 4")
    assert good == {"reward": 1.0}
    assert time.monotonic() - begin < 20


def test_it_is_tried_again_and_a_function_of_all_responses_fails_them_all():
    assert asked(rule("ends", retries=1), "exit code 3", "good")[1] == {"reward": 1.0}
    found = asked(rule("ends_with_all", weight=2.0), "good", "exit code 3")
    assert len(found) == 2
    wording(found, "ends_with_all", "code 3")
    assert asked(rule("ends_with_all", weight=2.0), "good", "good") == [{"reward": 2.0}, {"reward": 4.0}]


def test_async_calls_run_together_in_different_processes():
    """One after the other they would share a process."""
    *good, bad = asked(rule("ends_late"), "good", "good", "good", "SIGSEGV")
    wording(bad, "ends_late", "SIGSEGV")
    assert len({one["reward"] for one in good}) == 3


def test_it_looks_like_the_function():
    called = apart(ending_code.misbehaves, "tests.ending_code:misbehaves", None)
    assert str(inspect.signature(called)) == "(response, answer)"
    assert Rule(called, {}, 0).counts_opened
