"""Which tasks a step takes from several sets, and in which order."""

from collections import Counter

from ouroboros.pipeline.job.schedule import task_order
from ouroboros.pipeline.job.selection import Selector, redraw, select, tasks_of_step
from ouroboros.pipeline.store.errors import ConfigError
from tests.golden.messages import refuses


def steps(sets, batch_size, count, seed=1):
    return [select(sets, batch_size, step, seed) for step in range(1, count + 1)]


def test_one_shuffled_set_is_a_permutation_an_epoch_even_when_a_batch_spans_two():
    """7 tasks in batches of 3: seven steps are three epochs; steps 3 and 5 span two of them."""
    drawn = [task for step in range(1, 8) for task in tasks_of_step(7, 3, step, seed=5)]
    assert drawn == [task for epoch in range(3) for task in task_order(7, epoch, 5)]
    assert [sorted(drawn[i : i + 7]) for i in (0, 7, 14)] == [list(range(7))] * 3
    assert [sorted(tasks_of_step(3, 6, 1, seed=1)[i : i + 3]) for i in (0, 3)] == [[0, 1, 2]] * 2


def test_a_sequential_set_comes_in_the_order_of_the_file_again_and_again():
    """Three tasks, two a step; five a step is more than there are."""
    sets = [Selector(3, "sequential", 0)]
    assert steps(sets, 2, 3) == [[0, 1], [2, 0], [1, 2]]
    assert steps(sets, 5, 2) == [[0, 1, 2, 0, 1], [2, 0, 1, 2, 0]]


def test_a_random_set_is_drawn_anew_each_step_without_repetition_within_it():
    sets = [Selector(20, "random", 1)]
    made = steps(sets, 8, 50)
    assert all(len(set(step)) == 8 for step in made)
    assert len({tuple(step) for step in made}) == 50
    assert len(set(made[0]) & set(made[1])) > 0  # no epoch keeps them apart (with seed 1)
    assert Counter(select(sets, 45, 1, 1)).most_common()[-1][1] == 2  # 45 of 20: each twice, five a third time
    assert steps(sets, 8, 3) != steps([Selector(20, "random", 2)], 8, 3)


def test_sets_come_in_proportion_to_their_size_and_every_task_once_an_epoch():
    """9 + 3 tasks, 6 a step: two steps are an epoch."""
    sets = [Selector(9, "shuffle", 1), Selector(3, "shuffle", 1)]
    made = steps(sets, 6, 4)
    assert sorted(made[0] + made[1]) == sorted(made[2] + made[3]) == list(range(12))
    assert made[0] + made[1] != made[2] + made[3]


def test_each_set_keeps_its_own_order_among_the_others():
    sets = [Selector(6, "sequential", 0), Selector(6, "shuffle", 5), Selector(6, "random", 5)]
    epoch = select(sets, 18, 1, 1)
    assert [t for t in epoch if t < 6] == [0, 1, 2, 3, 4, 5]
    assert sorted(t for t in epoch if 6 <= t < 12) == [6, 7, 8, 9, 10, 11]
    assert [t for t in epoch if 6 <= t < 12] == [6 + t for t in tasks_of_step(6, 6, 1, 5)]
    assert sorted(t for t in epoch if t >= 12) == [12, 13, 14, 15, 16, 17]
    assert [t // 6 for t in epoch] != [0] * 6 + [1] * 6 + [2] * 6  # mixed


def test_a_step_does_not_depend_on_the_steps_before_it():
    sets = [Selector(5, "shuffle", 1), Selector(4, "random", 1), Selector(3, "sequential", 1)]
    alone = select(sets, 4, 9, 2)
    assert steps(sets, 4, 9, 2)[-1] == alone
    assert select(sets, 4, 9, 3) != alone  # the seed of the mixing


def test_a_share_over_many_steps():
    """Random draws too come in proportion: 30 and 10 tasks, 400 draws in ten epochs, 300 of the first exactly."""
    sets = [Selector(30, "random", 1), Selector(10, "shuffle", 1)]
    drawn = [task for step in steps(sets, 8, 50) for task in step]
    assert sum(task < 30 for task in drawn) == 300


def test_no_task_at_all():
    with refuses(ConfigError, "explore"):
        select([Selector(0, "shuffle", 1)], 4, 1, 1)


TWO = [Selector(5, "shuffle", 1), Selector(4, "sequential", 1)]  # tasks 0 to 4, and 5 to 8


def test_fresh_tasks_are_of_the_same_set_and_come_again_where_it_has_no_other():
    """Of tasks 0 to 4 three were asked, of 5 to 8 one."""
    made = redraw(TWO, [0, 1, 0, 1, 1], {0, 2, 4, 7}, explorer_step=3, round_=1)
    assert [set(made[0::2][:2]), set(made[1:2] + made[3:])] == [{1, 3}, {5, 6, 8}]
    made = redraw(TWO, [1] * 6, {5, 6, 7}, explorer_step=1, round_=1)
    assert made[0] == 8
    assert sorted(made[1:4]) == [5, 6, 7]
    assert made[4:] == made[:2]


def test_fresh_tasks_differ_by_seed_step_and_round_and_by_nothing_else():
    many = [Selector(1000, "sequential", 1)]
    drawn = {(step, round_): tuple(redraw(many, [0] * 9, set(), step, round_))
             for step in (1, 2, 3) for round_ in (1, 2)}
    assert len(set(drawn.values())) == 6
    assert redraw(many, [0] * 9, set(), 2, 1) == list(drawn[2, 1])
    assert redraw([Selector(1000, "sequential", 2)], [0] * 9, set(), 2, 1) != list(drawn[2, 1])
