"""Which weights make which rollouts: tables worked out by hand, and rules that hold for every setting."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ouroboros.pipeline.job.schedule import (
    Schedule,
    first_explored,
    reaches,
    rft_schedule,
    rollout_schedule,
    task_order,
)
from ouroboros.pipeline.store.errors import ConfigError, DataError
from tests.configs import overridden
from tests.golden.messages import refuses

EVERY = [
    Schedule(rows, batch, interval, offset, total)
    for rows, batch in ((8, 8), (8, 4), (8, 2), (8, 1), (2, 4), (2, 8), (1, 3))
    for interval, offset, total in itertools.product((1, 2, 3, 4, 7), (0, 1, 2, 5), (1, 2, 5, 12, 13))
]


def versions(schedule: Schedule) -> list[int]:
    return [schedule.weights_version(s) for s in range(1, schedule.explorer_steps + 1)]


def published(schedule: Schedule) -> list[int]:
    return [t for t in range(1, schedule.total_steps + 1) if schedule.publishes(t)]


# rows of an explorer step and of a train batch, sync_interval, sync_offset, trainer steps -> weights of each explorer
# step, and what is published: only what is asked for, by this stage or a longer one that continues it
@pytest.mark.parametrize(("numbers", "expected", "handed_over"), [
    ((8, 8, 1, 0, 5), [0, 1, 2, 3, 4], [1, 2, 3, 4]),  # on-policy: nobody asks for 5
    ((8, 8, 1, 1, 5), [0, 0, 1, 2, 3], [1, 2, 3, 4]),  # one step off; a longer stage asks for 4
    ((8, 8, 2, 2, 5), [0, 0, 0, 0, 2], [2, 4]),  # and here, too
    ((32, 8, 4, 0, 12), [0, 4, 8], [4, 8]),  # as in veRL: all four updates of a rollout, then the handover
    ((8, 8, 4, 0, 10), [0] * 4 + [4] * 4 + [8] * 2, [4, 8]),
    ((2, 6, 1, 0, 3), [0, 0, 0, 1, 1, 1, 2, 2, 2], [1, 2]),  # trainer step t needs explorer steps 3t-2 .. 3t
    # after 4, 8, 12 updates the last multiples of 3 are 3, 6, 12; when step 4 may begin, 12 is there, so 9 is not asked
    ((4, 1, 3, 0, 16), [0, 3, 6, 12], [3, 6, 12, 15]),  # 15: of a longer stage
    ((8, 2, 1, 0, 10), [0, 4, 8], [4, 8])])  # 20 rows from steps of 8: of the third a half is used
def test_the_weights_of_explorer_steps(numbers, expected, handed_over):
    schedule = Schedule(*numbers)
    assert schedule.explorer_steps == len(expected)
    assert (versions(schedule), published(schedule)) == (expected, handed_over)


def test_what_only_a_longer_stage_asks_for_is_not_published_where_none_can_follow():
    config = [overridden("buffer.total_steps=5", "synchronizer.sync_offset=1", "synchronizer.sync_interval=1",
                         "buffer.train_batch_size=null", "buffer.batch_size=1",
                         f"algorithm.optimizer.lr_scheduler_type={kind}")
              for kind in ("constant", "wsd", "cosine", "linear")]
    assert [published(rft_schedule(one, 1)) for one in config] == [[1, 2, 3, 4]] * 2 + [[1, 2, 3]] * 2
    assert published(rft_schedule(config[2], 1).until(3)) == [1, 2]  # the later steps go on from these


def test_the_rows_of_trainer_steps_and_the_explorer_steps_that_they_need():
    assert [Schedule(8, 8, 1, 0, 5).slots(t) for t in (1, 2, 5)] == [(0, 8), (8, 16), (32, 40)]
    assert Schedule(2, 6, 1, 0, 3).slots(2) == (6, 12)
    assert [Schedule(8, 8, 1, 0, 5).last_explorer_step(t) for t in (1, 2, 5)] == [1, 2, 5]
    assert [Schedule(32, 8, 4, 0, 12).last_explorer_step(t) for t in range(1, 13)] == [1] * 4 + [2] * 4 + [3] * 4
    assert [Schedule(8, 8, 4, 0, 10).last_with_same_weights(s) for s in (1, 4, 5, 9, 10)] == [4, 4, 8, 10, 10]
    assert [Schedule(8, 8, 1, 0, 5).oldest(s, 1) for s in (1, 3, 9)] == [0, 1, 3]  # rows of 9 would be trained on in 5


def evaluated(schedule: Schedule, interval: int) -> list[tuple[int, int]]:
    """(explorer step, its weights version) of every evaluation on the way."""
    return [(s, schedule.weights_version(s)) for s in range(1, schedule.explorer_steps + 1)
            if reaches(schedule.weights_version(s), schedule.weights_version(s - 1), interval)]


def test_weights_are_evaluated_once_when_they_reach_a_multiple():
    """Versions 0 0 0 0 4 4 4 4 8 8. Every 4: 4 and 8. Every 6: 4 is below, 8 is the first beyond. Every 10: none."""
    schedule = Schedule(8, 8, sync_interval=4, sync_offset=0, total_steps=10)
    assert evaluated(schedule, 4) == evaluated(schedule, 1) == [(5, 4), (9, 8)]
    assert evaluated(schedule, 6) == [(9, 8)]
    assert evaluated(schedule, 10) == []
    assert evaluated(Schedule(8, 8, 1, 0, 5), 2) == [(3, 2), (5, 4)]


def test_an_explorer_alone_stays_with_the_weights_it_begins_with():
    """10 tasks in steps of 4, three passes: 7 steps, two tasks left over."""
    buffer = SimpleNamespace(batch_size=4, total_steps=None, total_epochs=3)
    config = SimpleNamespace(buffer=buffer, algorithm=SimpleNamespace(repeat_times=2),
                             explorer=SimpleNamespace(over_rollout=SimpleNamespace(ratio=0.0)))
    schedule = rollout_schedule(config, 10)
    assert versions(schedule) == [0] * 7
    buffer.total_steps = 2
    assert versions(rollout_schedule(config, 10)) == [0, 0]
    with refuses(DataError, "explore"):
        rollout_schedule(config, 0)


def test_colocated_with_an_offset_the_trainer_waits_until_the_explorer_sleeps():
    """versions 0 0 1 2 3: with version 0 steps 1 and 2 are made, with 1 step 3: so trainer step 2 waits for step 3."""
    schedule = Schedule(8, 8, sync_interval=1, sync_offset=1, total_steps=5)
    assert [schedule.last_before_training(t) for t in range(1, 6)] == [2, 3, 4, 5, 5]


@pytest.mark.parametrize(("numbers", "step", "ages"), [
    ((8, 8, 4, 1, 50), 1, {0: 8}), ((8, 8, 4, 1, 50), 5, {4: 8}), ((8, 8, 4, 1, 50), 6, {1: 8}),
    ((2, 6, 1, 1, 9), 2, {1: 2, 0: 4}), ((2, 6, 1, 1, 9), 3, {1: 2, 0: 4})])
def test_the_age_of_new_rows(numbers, step, ages):
    """Versions 0 0 0 0 0 4, and 0 0 0 0 1 1 1 2 2, of which a trainer step has three."""
    assert Schedule(*numbers).staleness(step) == ages


@pytest.mark.parametrize(("numbers", "last"), [((8, 8, 4, 1, 50), 6), ((8, 2, 3, 0, 50), 16), ((2, 6, 2, 2, 50), 3),
                                               ((8, 8, 4, 1, 5), 5)])
def test_staleness_repeats_after_the_typical_steps(numbers, last):
    """Lead and period: 2 and 4 steps; 4 of the first 8 rows, and lcm(6, 8) rows in 12; 3 explorer steps, 6 rows, in 1
    step, and 2; the whole stage, where it is shorter."""
    schedule = Schedule(*numbers)
    assert schedule.typical_steps == range(1, last + 1)
    if last < schedule.total_steps:
        seen = [schedule.staleness(t) for t in schedule.typical_steps]
        assert all(schedule.staleness(t) in seen for t in range(last + 1, 51))


def test_rules():
    for schedule in EVERY:
        asked = versions(schedule)
        # exactly what is asked for is published, and below the last version what a longer stage would ask for
        longer = versions(replace(schedule, total_steps=schedule.total_steps + 100))
        assert published(schedule) == sorted({v for v in longer if 0 < v < schedule.total_steps}), schedule
        assert asked == sorted(asked)
        assert all(version % schedule.sync_interval == 0 for version in asked)
        for s, version in enumerate(asked, start=1):
            # no deadlock: these weights need no rows of step s or later, and leave the explorer its offset
            assert schedule.last_explorer_step(version) <= max(s - 1 - schedule.sync_offset, 0)
            same = [x for x, other in enumerate(asked, start=1) if other == version]
            assert schedule.last_with_same_weights(s) == same[-1]
        # every row is trained on once, and a batch is whole when its last explorer step is
        rows = [p for t in range(1, schedule.total_steps + 1) for p in range(*schedule.slots(t))]
        assert rows == list(range(schedule.total_steps * schedule.rows_per_trainer_step))
        for t in range(1, schedule.total_steps + 1):
            last_row = schedule.slots(t)[1] - 1
            assert schedule.last_explorer_step(t) == last_row // schedule.rows_per_explorer_step + 1


@pytest.mark.parametrize("colocated", [False, True])
def test_both_sides_reach_their_end_and_colocated_never_work_at_once(colocated):
    for schedule in EVERY:
        assert play(schedule, colocated) == (schedule.explorer_steps, schedule.total_steps)


def play(schedule, colocated):
    explored, trained = 0, 0
    while trained < schedule.total_steps:
        weights = explored < schedule.explorer_steps and schedule.weights_version(explored + 1)
        explorer_can = explored < schedule.explorer_steps and (
            weights == 0 or (weights <= trained and schedule.publishes(weights)))
        needed = (schedule.last_before_training if colocated else schedule.last_explorer_step)(trained + 1)
        trainer_can = explored >= needed
        assert explorer_can or trainer_can, f"{schedule}: deadlock after {explored} and {trained} steps"
        if colocated:
            assert not (explorer_can and trainer_can), schedule
        explored, trained = explored + bool(explorer_can), trained + bool(trainer_can)
    assert explored == schedule.explorer_steps
    return explored, trained


@pytest.mark.parametrize(("numbers", "key"), [
    ((0, 8, 1, 0, 1), "buffer.batch_size"), ((8, 0, 1, 0, 1), "buffer.train_batch_size"),
    ((8, 8, 0, 0, 1), "synchronizer.sync_interval"), ((8, 8, 1, -1, 1), "synchronizer.sync_offset"),
    ((8, 8, 1, 0, 0), "buffer.total_steps")])
def test_numbers_below_their_bounds_are_named(numbers, key):
    with refuses(ConfigError, key):
        Schedule(*numbers)


@pytest.mark.parametrize(("rows", "batch"), [(8, 3), (8, 12), (6, 4)])
def test_batches_that_do_not_fit_into_each_other_are_refused(rows, batch):
    with refuses(ConfigError, f"train_batch_size={batch}", rows):
        Schedule(rows, batch, 1, 0, 1)


def config(**buffer):
    given = {"batch_size": 4, "train_batch_size": None, "total_epochs": 3, "total_steps": None} | buffer
    made = overridden("algorithm.repeat_times=2", "synchronizer.sync_interval=1", "synchronizer.sync_offset=0")
    vars(made.buffer).update(given)
    return made


def test_steps_follow_from_epochs():
    """10 tasks x 3 epochs x 2 = 60 rows: 7 whole batches of 8; 15 of 4."""
    assert rft_schedule(config(), 10).total_steps == 7
    assert rft_schedule(config(train_batch_size=4), 10).total_steps == 15
    with refuses(DataError, "explore"):
        rft_schedule(config(), 0)
    assert rft_schedule(config(), 1).total_steps == 1  # 6 rows are less than a batch: one step all the same
    assert rft_schedule(config(total_steps=99), 10).total_steps == 99
    assert rft_schedule(config(), 10).rows_per_trainer_step == 8


def test_the_schedule_counts_the_new_rows_of_a_batch_alone():
    """Half of 16 rows again: 8 new ones, so 60 rows are 7 steps as without, and a version needs 8 rows, not 16."""
    replaying = config(train_batch_size=16)
    replaying.buffer.trainer_input.experience_buffer.replay_buffer.enable = True
    schedule = rft_schedule(replaying, 10)
    assert (schedule.rows_per_trainer_step, schedule.other_rows, schedule.total_steps) == (8, 8, 7)
    assert [schedule.weights_version(step) for step in (1, 2, 3)] == [0, 1, 2]


@pytest.mark.parametrize(("batch", "read"), [(32, [1, 2, 5]), (16, [1, 1, 3]), (64, [1, 3, 9])])
def test_a_resumed_trainer_reads_the_explorer_steps_of_its_next_rows(batch, read):
    """32 rows in an explorer step; after the trainer steps 0, 1 and 4."""
    config = overridden("buffer.batch_size=8", "algorithm.repeat_times=4", f"buffer.train_batch_size={batch}")
    assert [first_explored(config, step) for step in (0, 1, 4)] == read
    config.buffer.trainer_input.experience_buffer.replay_buffer.enable = True
    assert first_explored(config, 4) == 1


def test_the_order_depends_on_seed_and_epoch():
    orders = {tuple(task_order(20, epoch, seed)) for epoch in range(3) for seed in range(3)}
    assert len(orders) == 9
