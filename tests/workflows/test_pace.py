"""explorer.dynamic_timeout: attempts that take a multiple of the others' time fail."""

import pytest

from ouroboros.workflows.attempts import schedule
from ouroboros.workflows.attempts.pace import Pace
from ouroboros.workflows.attempts.schedule import roll_out
from tests.golden.messages import wording
from tests.workflows.test_runner import SAMPLING, Recording, simple


def test_the_limit_follows_the_mean_of_successful_attempts_after_the_warmup():
    pace = Pace(ratio=3.0, warmup_min_steps=2)
    pace.begin_step()
    pace.ended(1.0)
    pace.begin_step()
    pace.ended(3.0)
    assert pace.limit is None  # two steps without one
    pace.begin_step()
    assert pace.limit == 6.0  # three times the mean of 1 and 3
    pace.ended(8.0)
    assert pace.limit == 12.0


def test_without_a_successful_attempt_there_is_no_limit():
    pace = Pace(ratio=3.0, warmup_min_steps=1)
    pace.begin_step()
    pace.begin_step()
    assert pace.limit is None


def test_times_of_long_attempts_are_readable():
    pace = Pace(ratio=3.0, warmup_min_steps=1)
    pace.ended(1234.0)  # 20 min 34 s
    wording(pace.reason(4000.0), "1:06:40", "20:34")


class Second(Recording):
    """Each call of the engine takes a second of `now`."""

    now = 0.0

    def advance(self, seconds):
        Second.now += 1.0
        return super().advance(seconds)


@pytest.fixture
def clock(monkeypatch):
    Second.now = 0.0
    monkeypatch.setattr(schedule, "monotonic", lambda: Second.now)


def asking(times):
    """A workflow that asks the model so often, each time for a second; a prompt of 7 asks for ever."""
    def workflow(prompt):
        count = 0
        while prompt == [7] or count < times - 1:
            yield prompt
            count += 1
        return simple(prompt, (yield prompt))

    return workflow


def step(pace, workflow, prompts):
    pace.begin_step()
    return roll_out(Second(), [workflow] * len(prompts), prompts, list(range(len(prompts))), [SAMPLING] * len(prompts),
                    pace=pace)


@pytest.mark.usefixtures("clock")
def test_an_attempt_over_the_limit_fails_alone_and_its_time_is_not_in_the_mean():
    pace = Pace(ratio=2.0, warmup_min_steps=1)
    assert [one.status for one in step(pace, asking(3), [[5], [6]])] == ["ok", "ok"]  # 3 s each, without a limit
    slow, *others = step(pace, asking(2), [[7], [5], [6]])
    assert [one.status for one in others] == ["ok", "ok"]
    assert slow.status == "workflow_failed"
    wording(slow.reason, "explorer.dynamic_timeout.ratio=2", "took 6.0 s", "2.5 s")  # over 2 x (3 + 3 + 2 + 2) / 4 s
    assert pace.limit == 5.0


@pytest.mark.usefixtures("clock")
def test_an_attempt_that_waits_for_a_place_has_not_begun():
    pace = Pace(ratio=2.0, warmup_min_steps=1)
    step(pace, asking(3), [[5]])
    pace.begin_step()
    outcomes = roll_out(Second(), [asking(3)] * 4, [[5]] * 4, list(range(4)), [SAMPLING] * 4, concurrency=1, pace=pace)
    assert [one.status for one in outcomes] == ["ok"] * 4  # the last one ends after 12 s, and took 3
