"""The shapes of the learning rate."""

import itertools
import math
from types import SimpleNamespace

import pytest

from ouroboros.pipeline.settings.rates import SCHEDULE, equal_steps, is_kept
from ouroboros.stages.learner.engine.rates import learning_rate
from tests.configs import overridden


def rates(shape, warmup=0, least=0.0, total=10, peak=1.0, **others):
    given = SimpleNamespace(lr=peak, lr_scheduler_type=shape, lr_warmup_steps=warmup, min_lr_ratio=least, **{
        "lr_warmup_steps_ratio": 0.0, "lr_decay_steps": 0, "lr_decay_steps_ratio": 0.1} | others)
    return [learning_rate(step, total, given) for step in range(1, total + 1)]


def test_a_constant_rate_after_a_warmup_in_equal_steps():
    assert rates("constant", least=0.5, peak=3e-4) == [3e-4] * 10  # its floor is for shapes that fall
    assert rates("constant", warmup=4)[:6] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_would_reach_its_floor_one_step_after_the_last():
    """2 steps up, then from 1 down to 0.2 in 8 steps of 0.1, the eighth of which nobody makes."""
    assert rates("linear", warmup=2, least=0.2) == pytest.approx([0.5, 1.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3])


def test_cosine_is_half_way_down_in_the_middle():
    found = rates("cosine", least=0.1)
    assert found[0] == 1.0
    assert found[5] == pytest.approx(0.55)  # (1 + 0.1) / 2
    assert found[9] == pytest.approx(0.1 + 0.9 * (1 - math.cos(math.pi / 10)) / 2)  # as far above the end as from it
    assert found == sorted(found, reverse=True)
    assert rates("cosine", total=2, peak=1e-6) == pytest.approx([1e-6, 5e-7])
    assert rates("cosine", total=2, peak=1e-6, least=0.01) == pytest.approx([1e-6, 5.05e-7])


@pytest.mark.parametrize("shape", ["linear", "cosine", "wsd"])
def test_every_step_learns(shape):
    assert rates(shape, total=1) == [1.0]
    assert min(rates(shape, total=1000)) > 0


@pytest.mark.parametrize(("shape", "schedule"), [
    ("linear", "get_linear_schedule_with_warmup"), ("cosine", "get_cosine_schedule_with_warmup")])
def test_after_the_warmup_the_rates_are_those_of_transformers(shape, schedule):
    """Which makes its first step at 0; ours rises to lr one step earlier."""
    import torch
    import transformers

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    other, theirs = getattr(transformers, schedule)(optimizer, 3, 10), []
    for _ in range(10):
        theirs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        other.step()
    assert rates(shape, warmup=3)[3:] == pytest.approx(theirs[3:])
    assert theirs[:3] == pytest.approx([0, 1 / 3, 2 / 3])


def test_a_warmup_as_long_as_the_training_or_longer_or_as_a_share_of_all_steps():
    assert rates("cosine", warmup=10)[-1] == 1.0
    assert rates("linear", warmup=20)[-1] == 0.5
    # Two tenths of ten steps are two; a part of a step counts as one, as in transformers: of ten steps 0.05 are 1 and
    # 0.25 are 3, where rounding half to even gives 0 and 2. 0.29 * 100 is 28.999999999999996.
    assert rates("linear", lr_warmup_steps_ratio=0.2, least=0.2) == rates("linear", warmup=2, least=0.2)
    assert rates("constant", lr_warmup_steps_ratio=0.29, total=100)[28] == 1.0
    assert rates("constant", lr_warmup_steps_ratio=0.05, total=10)[0] == 1.0
    assert rates("constant", lr_warmup_steps_ratio=0.25, total=10)[:3] == pytest.approx([1 / 3, 2 / 3, 1])


def test_wsd_stays_and_falls_over_its_last_steps_alone_or_after_the_warmup():
    """2 up, 4 at the peak, then 4 from 1 on down, to 0.2 one step after the last: 0.2 a step."""
    expected = [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4]
    assert rates("wsd", warmup=2, least=0.2, lr_decay_steps=4) == pytest.approx(expected)
    assert rates("wsd", warmup=2, least=0.2, lr_decay_steps_ratio=0.4) == pytest.approx(expected)
    assert rates("wsd", warmup=6, lr_decay_steps=9)[5:] == pytest.approx([1.0, 1.0, 0.75, 0.5, 0.25])


def schedule(shape, warmup=0, ratio=0.0, decay=0, least=0.0, lr=1.0):
    return dict(zip(SCHEDULE, (lr, shape, warmup, ratio, decay, 0.1, least), strict=True))


@pytest.mark.parametrize(("one", "total", "other", "others", "expected"), [
    (schedule("constant", 3), 4, schedule("constant", 3), 8, math.inf),
    (schedule("wsd", 3), 20, schedule("wsd", 3), 40, 18),  # a tenth of 20 falls
    (schedule("wsd", 3, decay=5), 20, schedule("constant", 3), 40, 15),
    (schedule("cosine", 3), 20, schedule("cosine", 3), 40, 3),
    (schedule("cosine"), 20, schedule("cosine"), 40, 0),
    (schedule("cosine"), 20, schedule("cosine"), 20, math.inf),
    (schedule("constant", ratio=0.1), 20, schedule("constant", ratio=0.1), 40, 0),  # 2 and 4 steps
    (schedule("constant", ratio=0.1), 20, schedule("constant", ratio=0.05), 40, math.inf),
    (schedule("constant"), 4, schedule("constant", lr=0.5), 8, 0)])
def test_two_stages_have_the_same_rates_up_to_a_step(one, total, other, others, expected):
    assert equal_steps({"policy": one}, total, {"policy": other}, others) == expected
    assert equal_steps({"policy": one, "critic": schedule("cosine")}, total,
                       {"policy": other, "critic": schedule("cosine")}, others) in (expected, 0)


def test_up_to_that_step_the_rates_are_equal_to_the_bit():
    shapes = [schedule(*each) for each in itertools.product(
        ("constant", "wsd", "linear", "cosine"), (0, 3), (0.0,), (0, 4), (0.0, 0.3))]
    shapes += [schedule(shape, ratio=0.15, least=0.7) for shape in ("constant", "wsd")]
    for one, other in itertools.product(shapes, repeat=2):
        for total, others in ((7, 13), (13, 13), (20, 7)):
            equal = equal_steps({"policy": one}, total, {"policy": other}, others)
            for step in range(1, int(min(equal, total, others)) + 1):
                assert learning_rate(step, total, SimpleNamespace(**one)) == learning_rate(
                    step, others, SimpleNamespace(**other)), (one, other, step)


def test_a_rate_reads_nothing_but_what_is_compared():
    read = set()

    class Reading(dict):
        def __getattr__(self, name):
            read.add(name)
            return self[name]

    for shape in ("constant", "wsd"):
        learning_rate(9, 10, Reading(schedule(shape)))
    assert read == {*SCHEDULE}


def test_checkpoints_that_stay():
    """By the number, and before wsd falls: of 40 steps in the last 4."""
    constant = overridden("algorithm.optimizer.lr_scheduler_type=constant")
    assert not any(is_kept(constant, 40, step) for step in range(1, 41))
    both = overridden("trainer.keep_every=15", "algorithm.optimizer.lr_scheduler_type=wsd")
    assert [step for step in range(1, 41) if is_kept(both, 40, step)] == [15, 30, 36]
