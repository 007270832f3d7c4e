"""Calls of reward functions are an activity: which function, how often, and a sign of life with each row."""

import asyncio

import pytest

from ouroboros.pipeline.job import activity
from ouroboros.pipeline.job.activity import Activity, Doing
from ouroboros.stages.explorer.watched_rewards import WatchedRewards
from ouroboros.workflows.protocol.outcomes import Outcome, add_rewards
from ouroboros.workflows.protocol.trajectory import Trajectory
from ouroboros.workflows.rewards import Rewards

seen: list[Doing] = []


def of_row(response, answer, weight=1.0):
    note()
    return weight * (response == answer)


def of_batch(responses, answers):
    note()
    return [float(one == other) for one, other in zip(responses, answers, strict=True)]


async def awaited(response, answer):
    await asyncio.sleep(0)
    return of_row(response, answer)


class Judge:
    def __call__(self, response, answer):
        return of_row(response, answer)


judge = Judge()


def fails(response, answer):
    raise RuntimeError("no server")


def note():
    seen.append(Doing.read(note.file))


@pytest.mark.parametrize("name", ["of_row", "of_batch", "awaited", "judge", "fails"])
def test_they_return_what_they_would_and_are_named_while_they_run(settings, tmp_path, monkeypatch, name):
    monkeypatch.setattr(activity, "RENEW_SECONDS", 0.0)
    note.file = tmp_path / "a"
    seen.clear()
    config, doing = settings(), Activity(note.file)
    doing.now("evaluates", "1 of 2")
    taskset = config.buffer.explorer_input.taskset
    taskset.default_reward_fn_type = f"{__name__}:{name}"
    taskset.reward_fn_args = {"weight": 2.0} if name == "of_row" else {}
    rows = [[], []], ["2", "3"], ["2", "4"], [1, 1]
    (plain,), (watched,) = Rewards(config).of(taskset), WatchedRewards(config, doing).of(taskset)
    expected = plain(*rows)
    seen.clear()
    begin = note.file.stat().st_mtime_ns
    assert watched(*rows) == expected
    assert all(one.kind.endswith(f" {__name__}:{name}") for one in seen)
    assert len(seen) == {"of_batch": 1, "fails": 0}.get(name, 2)
    assert note.file.stat().st_mtime_ns > begin
    assert Doing.read(note.file)[:2] == ("evaluates", "1 of 2")


@pytest.mark.parametrize("make", [lambda config: Rewards(config), lambda config: WatchedRewards(config, Activity())])
def test_a_stage_counts_the_thought_that_the_prompt_opened(settings, make):
    """As a debug run does: <think> is in the prompt, the response only closes it."""
    config = settings()
    taskset = config.buffer.explorer_input.taskset
    taskset.default_reward_fn_type = "format_reward"
    said = Trajectory([1], [2], [0.0], [1], "stop")
    outcome = Outcome("ok", trajectory=said, response="a\n</think>\n<answer>3</answer>", opened="<think>")
    add_rewards([outcome], [[]], ["3"], make(config).of(taskset))
    assert outcome.components == {"format_score": 0.1}


def test_what_is_no_function_of_rows_is_left_as_it_is(settings):
    config = settings()
    taskset = config.buffer.explorer_input.taskset
    taskset.default_reward_fn_type = "overlong_penalty"
    (function,) = WatchedRewards(config, Activity()).of(taskset)
    assert function([[]], ["x"], ["x"], [1]) == [{"overlong_penalty": 0.0}]
