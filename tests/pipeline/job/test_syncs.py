"""Which weights an explorer step begins with where one side says when: by hand, and in random orders of both sides."""

import random

import pytest

from ouroboros.pipeline.job import syncs, waiting
from ouroboros.pipeline.job.schedule import Schedule
from ouroboros.pipeline.settings.explorer import depends_on_time
from ouroboros.pipeline.settings.kinds import KINDS
from ouroboros.pipeline.store import files, records, tables, versions
from ouroboros.pipeline.store.errors import StageError
from tests.configs import overridden, problems_of
from tests.factories import row
from tests.golden.messages import refuses

STYLES = ("trainer_driven", "explorer_driven")
STYLE, BOUND = "synchronizer.sync_style", "synchronizer.max_staleness"


def record(stage, step, version):
    tables.write(tables.step_file(stage, "rollouts", step), records.Rollout, [
        row(records.Rollout, step=step, weights_version=version)])


class Both:
    """An explorer and a trainer without models, which work in the order that a test says."""

    def __init__(self, stage, schedule, style, bound, interval=1):
        self.stage, self.schedule = stage, schedule
        self.config = overridden(f"{STYLE}={style}", f"synchronizer.sync_interval={interval}",
                                 f"{BOUND}={'null' if bound is None else bound}")
        self.trained, self.used, self.published, self.asks = 0, [], set(), 0
        self.explorer, self.trainer = self.opened(), self.opened()
        if self.trainer.publishes(0):
            self.hand_over(0)

    def opened(self):
        return syncs.syncs_of(self.stage, self.schedule, self.config)

    def hand_over(self, version):
        directory = versions.version_directory(self.stage, version)
        directory.mkdir(parents=True, exist_ok=True)
        files.write_json(directory / files.MANIFEST, {"version": version})
        self.published.add(version)
        self.trainer.answer(version)

    def train(self):
        """One step of the trainer, if its rows are there; else it answers, as it does while it waits."""
        can = self.trained < self.schedule.total_steps and (
            self.schedule.last_explorer_step(self.trained + 1) <= len(self.used))
        self.trained += can
        if (can and self.trainer.publishes(self.trained)) or self.trainer.is_asked(self.trained):
            self.asks += self.trainer.is_asked(self.trained)
            self.hand_over(self.trained)
        return can

    def explore(self):
        """One step of the explorer; while it waits, the trainer works."""
        step = len(self.used) + 1
        version = self.explorer.begin(step, self.train)
        assert self.explorer.kept(step, version) == version
        self.used.append(version)
        return version

    def reopen(self):
        """The explorer in a new process, which reads what the last step began with."""
        if self.used:
            record(self.stage, len(self.used), self.used[-1])
        self.explorer = self.opened()

    def ages(self):
        """Staleness of the rows of each trainer step."""
        explored, trained = self.schedule.rows_per_explorer_step, self.schedule.rows_per_trainer_step
        return [step - 1 - self.used[place // explored] for step in range(1, self.schedule.total_steps + 1)
                for place in range((step - 1) * trained, step * trained)]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(waiting.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(files.os, "fsync", lambda descriptor: None)


def test_the_schedule_decides(tmp_path):
    """Versions 0 0 2 2 4 4, of which a step has those of the step before."""
    fixed = Both(tmp_path, Schedule(8, 8, 2, 0, 6), "fixed", None).trainer
    assert [fixed.before(step) for step in range(1, 7)] == [0, 0, 0, 2, 2, 4]
    assert [step for step in range(7) if fixed.publishes(step)] == [0, 2, 4]
    for step, awaited in ((3, True), (4, False)):  # 4 is the last with version 2, which is not there
        record(tmp_path, step, 2)
        assert fixed.awaits(2) is awaited


def test_the_trainer_drives(tmp_path):
    """Every second version is published. The explorer takes the newest; bound 2: step 4 needs version 1, so 2."""
    both = Both(tmp_path, Schedule(8, 8, 2, 0, 6), "trainer_driven", 2, interval=2)
    assert [both.explore() for _ in range(3)] == [0, 0, 0]
    assert both.trained == 0
    assert both.explore() == 2  # it waited until the trainer had made two steps
    assert both.train() is True
    assert both.train() is True
    assert both.explore() == 4
    assert both.published == {0, 2, 4}


def test_the_explorer_drives(tmp_path):
    """It asks before steps 3 and 5, and gets what the trainer has: all of its steps, or none."""
    both = Both(tmp_path, Schedule(8, 8, 2, 0, 6), "explorer_driven", None, interval=2)
    assert [both.explore(), both.explore()] == [0, 0]
    assert both.train() is True
    assert both.explore() == 2  # the trainer was about to make its second step, and answers after it
    assert both.explore() == 2
    assert (both.asks, both.published) == (1, {0, 2})
    while both.train():
        pass
    assert (both.explore(), both.published) == (4, {0, 2, 4})


@pytest.mark.parametrize("late", [{"explorer_step": 2, "version": 5}, {"explorer_step": 3, "version": 0}])
def test_an_answer_to_an_earlier_question_is_none(tmp_path, late):
    """Step 3 needs version 1. An answer of a trainer that had read an earlier question comes before its own."""
    both = Both(tmp_path, Schedule(8, 8, 10, 0, 4), "explorer_driven", 1, interval=10)
    assert [both.explore(), both.explore()] == [0, 0]
    answers = iter([lambda: files.write_json(tmp_path / "weights" / syncs.GIVEN, late)])
    assert both.explorer.begin(3, lambda: next(answers, both.train)()) == 1


def test_the_explorer_asks_sooner_where_rows_would_become_too_old(tmp_path):
    """Requests are due before every tenth step. Bound 1: step 3 needs version 1."""
    both = Both(tmp_path, Schedule(8, 8, 10, 0, 4), "explorer_driven", 1, interval=10)
    assert [both.explore(), both.explore()] == [0, 0]
    assert both.explore() >= 1
    assert both.asks == 1


def test_the_explorer_asks_where_the_weights_of_the_step_before_are_lost(tmp_path):
    both = Both(tmp_path, Schedule(8, 8, 10, 0, 4), "explorer_driven", None, interval=10)
    both.explore()
    files.remove_tree(versions.version_directory(tmp_path, 0))
    assert (both.explore(), both.asks) == (1, 1)


def test_an_idle_trainer_answers_with_what_it_has_published(tmp_path):
    """It waits for rows of step 2, which the explorer asks weights for."""
    both = Both(tmp_path, Schedule(8, 4, 1, 0, 4), "explorer_driven", None)
    both.explore()
    assert [both.train(), both.train(), both.train()] == [True, True, False]
    assert both.explore() == 2


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("rows", "batch", "interval", "bound"), [
    (8, 8, 1, 0), (8, 8, 3, 2), (8, 2, 2, 4), (4, 8, 1, 1)])
def test_the_bound_holds_in_random_orders(tmp_path, style, rows, batch, interval, bound):
    """Both sides, and new processes of the explorer, in 4 x 25 orders: no row is older, no version falls, both end."""
    for seed in range(25):
        order, total = random.Random(seed), 6
        both = Both(tmp_path / str(seed), Schedule(rows, batch, interval, 0, total), style, bound, interval)
        while len(both.used) < both.schedule.explorer_steps:
            for _ in range(order.randrange(4)):
                both.train()
            if order.random() < 0.1:
                both.reopen()
            both.explore()
        while both.train():
            pass
        assert both.trained == total
        assert both.used == sorted(both.used)
        assert min(both.ages()) >= 0
        assert max(both.ages()) <= bound, (seed, both.used)


@pytest.mark.parametrize("style", STYLES)
def test_a_killed_step_begins_with_the_same_weights_again(tmp_path, style):
    both = Both(tmp_path, Schedule(8, 8, 1, 0, 6), style, None)
    both.explore()
    record(tmp_path, 1, 0)
    both.train()
    version = both.explorer.begin(2, both.train)
    both.trained += 1
    both.hand_over(both.trained + 5)  # newer ones came since
    assert both.opened().begin(2, both.train) == version
    files.remove_tree(versions.version_directory(tmp_path, version))  # and those are lost with their trainer step
    assert both.opened().begin(2, both.train) > version
    syncs.forget(tmp_path)
    assert not list(tmp_path.glob("weights/*.json"))
    assert both.opened().begin(2, both.train) > version


def test_a_resumed_trainer_publishes_what_the_next_step_waits_for(tmp_path):
    """Step 2 began with version 1, which is lost, and the trainer goes on after step 1, or 3, with an interval of 2."""
    both = Both(tmp_path, Schedule(8, 8, 2, 0, 6), "trainer_driven", None, interval=2)
    both.explore()
    record(tmp_path, 1, 0)
    assert not both.trainer.awaits(1)  # version 0 will do
    record(tmp_path, 2, 1)
    assert both.opened().awaits(1)
    assert both.opened().awaits(3)
    both.hand_over(1)
    assert not both.opened().awaits(1)


def test_nothing_comes_in_time(tmp_path):
    both = Both(tmp_path, Schedule(8, 8, 1, 0, 6), "trainer_driven", 0)
    both.explore()
    both.explorer.settings.sync_timeout = 0.01
    with refuses(StageError, "version 1"):
        both.explorer.begin(2, lambda: None)


CONTROLLED = ("algorithm.sample_strategy=staleness_control", "algorithm.sample_strategy_args={max_staleness: 2}")


@pytest.mark.parametrize(("given", "key"), [
    ((f"{STYLE}=fully_async",), STYLE),
    ((f"{BOUND}=2",), BOUND),
    ((f"{STYLE}=trainer_driven", "mode=colocate"), STYLE),
    ((f"{STYLE}=explorer_driven", "explorer.partial_rollout=true"), "explorer.partial_rollout"),
    ((f"{STYLE}=trainer_driven", "explorer.partial_rollout=true"), None),
    # the newest of every third version is two steps behind when it is used; explorer_driven asks whenever it must
    ((f"{STYLE}=trainer_driven", f"{BOUND}=1", "synchronizer.sync_interval=3"), BOUND),
    ((f"{STYLE}=trainer_driven", f"{BOUND}=2", "synchronizer.sync_interval=3"), None),
    ((f"{STYLE}=explorer_driven", f"{BOUND}=0", "synchronizer.sync_interval=3"), None),
    ((f"{STYLE}=trainer_driven", *CONTROLLED, f"{BOUND}=3"), BOUND),
    ((f"{STYLE}=trainer_driven", *CONTROLLED, f"{BOUND}=2"), None),
    *(((f"{STYLE}={style}", *more), None) for style in STYLES
      for more in ((), ("mode=colocate", "trainer.overlap=true")))])
def test_what_goes_together(given, key):
    found = {problem.key for problem in problems_of(*given)}
    assert key in found if key else found == set()


@pytest.mark.parametrize("style", STYLES)
def test_both_styles_depend_on_time_where_a_stage_explores_and_trains(style):
    config = overridden(f"{STYLE}={style}")
    assert depends_on_time(KINDS["rft"], config) == [STYLE]
    assert depends_on_time(KINDS["rollout"], config) == []
