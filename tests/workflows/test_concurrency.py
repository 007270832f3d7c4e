"""The number of attempts in progress by the engine's pressure: numbers by hand, and rows that do not depend on it."""

import pytest

from ouroboros.pipeline.settings.explorer import depends_on_time
from ouroboros.pipeline.settings.kinds import KINDS
from ouroboros.workflows.attempts import schedule
from ouroboros.workflows.attempts.concurrency import Concurrency, concurrency_of
from ouroboros.workflows.protocol.engine import Pressure
from tests import agents
from tests.configs import composed, overridden, problems_of
from tests.workflows.test_isolated import PROMPTS, Seeded, roll, rows


def limits(places, *looks):
    """The limit after each look (usage, preemptions so far, attempts in progress)."""
    one, found = Concurrency(places), []
    for usage, preemptions, active in looks:
        one.update(Pressure(usage, preemptions), active)
        found.append(one.limit)
    return found


@pytest.mark.parametrize(("places", "looks", "expected"), [
    # 256 places: 4 a look; not while 90% are in use, nor while fewer attempts are in progress than may be
    (256, ((0.5, 0, 256), (0.89, 0, 260), (0.9, 0, 264), (0.2, 0, 200)), [260, 264, 264, 264]),
    (8, ((0.5, 0, 8),), [9]),
    # preemptions: 0.75 x 256 = 192; then 192 attempts are still more than are left: 0.75 x 192 = 144; none new: + 4
    (256, ((1.0, 7, 256), (1.0, 8, 256), (1.0, 30, 250), (0.8, 30, 144)), [256, 192, 144, 148]),
    (2, ((1.0, 0, 2), (1.0, 1, 2), (1.0, 2, 1), (1.0, 3, 0)), [2, 1, 1, 1]),
    # those before the first look are nobody's: an evaluation begins anew on the engine of a stage
    (64, ((0.5, 1000, 64), (0.5, 1000, 65)), [65, 66]), (64, ((0.5, 0, 64), (0.5, 1000, 64)), [65, 48])])
def test_it_grows_by_a_64th_of_the_places_and_falls_to_three_quarters_of_the_attempts(places, looks, expected):
    assert limits(places, *looks) == expected


class Pressed(Seeded):
    """Holds as many requests as its cache has room for; with more it preempts one at each step."""

    def __init__(self, room):
        super().__init__()
        self.room, self.most, self.preempted = room, [], 0

    def advance(self, seconds=0.2):
        self.most.append(len(self._waiting))
        self.preempted += len(self._waiting) > self.room
        return super().advance(seconds)

    def pressure(self):
        return Pressure(min(len(self._waiting) / self.room, 1.0), self.preempted)


def test_pressure_limits_what_is_in_progress_and_changes_no_row(monkeypatch):
    """Two replies a step. Six attempts of three turns begin; with preemptions the limit falls to 4 and less."""
    monkeypatch.setattr(schedule, "PRESSURE_SECONDS", -1)
    prompts = [[10 + i, 20] for i in range(24)]
    expected = rows(roll([agents.as_generator] * 24, prompts))
    engine, concurrency = Pressed(3), Concurrency(6)
    assert rows(roll([agents.as_generator] * 24, prompts, engine, concurrency)) == expected
    assert engine.most[0] == 6
    assert max(engine.most[-12:]) < 6
    assert 1 <= concurrency.limit < 6


def test_an_engine_that_does_not_know_its_pressure_leaves_the_limit(monkeypatch):
    monkeypatch.setattr(schedule, "PRESSURE_SECONDS", -1)
    concurrency = Concurrency(3)
    roll([agents.as_generator] * 8, PROMPTS, Seeded(), concurrency)
    assert concurrency.limit == 3


def test_settings_name_a_number_or_nothing_or_begin_with_the_sequences_that_engines_decode_at_once():
    assert concurrency_of(overridden("explorer.runner_concurrency=7").explorer) == 7
    assert concurrency_of(composed().explorer) is None
    auto = overridden("explorer.runner_concurrency=auto", "explorer.rollout_model.engine_num=2",
                      "explorer.rollout_model.max_num_seqs=32")
    assert concurrency_of(auto.explorer).limit == 64
    assert [kind for kind in ("rft", "rollout", "evaluate", "bench", "train", "report")
            if depends_on_time(KINDS[kind], auto)] == ["rft", "rollout", "evaluate", "bench"]


@pytest.mark.parametrize("given", [
    ("explorer.runner_concurrency=0",), ("explorer.runner_concurrency=many",),
    ("explorer.runner_concurrency=auto", "explorer.rollout_model.engine_type=transformers")])
def test_what_is_no_limit_is_refused(given):
    assert {problem.key for problem in problems_of(*given)} == {"explorer.runner_concurrency"}


def test_auto_works_with_vllm():
    assert problems_of("explorer.runner_concurrency=auto") == []
