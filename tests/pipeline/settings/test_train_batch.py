"""What a train batch is made of, by hand."""

from fractions import Fraction

import pytest

from ouroboros.pipeline.settings.train_batch import (
    RATIO,
    TrainBatch,
    divided,
    rows_of_step,
    share,
    taken_groups,
    train_batch,
)
from ouroboros.pipeline.store.errors import ConfigError
from tests.golden.messages import refuses

REPLAY = "buffer.trainer_input.experience_buffer.replay_buffer"
NONE = Fraction(0)


TENTH, QUARTER, HALF = Fraction(1, 10), Fraction(1, 4), Fraction(1, 2)


@pytest.mark.parametrize(("size", "step", "group", "experts", "replayed", "expected"), [
    # 32 rows in groups of 4. A tenth is 3.2, so 4 expert rows. 0.3 is 9.6 rows or 2.4 groups, so 8 rows
    (32, 32, 4, TENTH, NONE, TrainBatch(28, 0, 4)), (32, 32, 4, NONE, Fraction(3, 10), TrainBatch(24, 8, 0)),
    (32, 32, 4, TENTH, Fraction(3, 10), TrainBatch(20, 8, 4)), (96, 96, 8, NONE, Fraction(3, 10), TrainBatch(72, 24)),
    (32, 32, 4, NONE, NONE, TrainBatch(32)),
    # without a size an explorer step is new and the rest comes on top: half of 64 is 32; a tenth of 35 is 4, which
    # leaves 31, of 36 too: 32; a quarter of 40 is 2.5 groups, so 2: 32
    (None, 256, 8, NONE, HALF, TrainBatch(256, 256, 0)),  # 504 would do too, with 248
    (None, 32, 4, HALF, NONE, TrainBatch(32, 0, 32)),
    (None, 32, 4, Fraction(999, 1000), NONE, TrainBatch(32, 0, 31968)),
    (None, 32, 4, TENTH, NONE, TrainBatch(32, 0, 4)), (None, 32, 4, NONE, QUARTER, TrainBatch(32, 8, 0))])
def test_experts_are_rounded_up_and_replayed_groups_down(size, step, group, experts, replayed, expected):
    assert divided(size, step, group, experts, replayed) == expected


@pytest.mark.parametrize("ratio", [0, 1, -0.5, True, None, "0.5", float("nan")])
def test_a_share_is_more_than_nothing_and_less_than_all(ratio):
    with refuses(ConfigError, "0 and", "than 1"):
        share("key", ratio)


def test_a_share_is_taken_as_it_is_written():
    """0.07 * 100 is 7.000000000000001 in binary."""
    assert share("key", 0.07) * 100 == 7


@pytest.mark.parametrize(("overrides", "key"), [
    ((f"{REPLAY}.enable=true", "buffer.train_batch_size=8"), f"{REPLAY}.replay_ratio"),  # less than one group
    ((f"{REPLAY}.enable=true", "buffer.train_batch_size=20"), "buffer.train_batch_size"),  # 12 new rows
    (("algorithm.sample_strategy=mix", f"{REPLAY}.enable=true"), RATIO)])
def test_batches_that_cannot_be_divided_are_refused(settings, overrides, key):
    with pytest.raises(ConfigError) as caught:
        train_batch(settings("buffer.batch_size=4", "algorithm.repeat_times=8", *overrides))
    assert [problem.key for problem in caught.value.problems] == [key]


def test_an_explorer_step_takes_the_least_number_of_groups_that_is_its_share():
    """Of ten tasks nine tenths are 9, 0.85 of them 8.5, so 9; 10 * (1 - 0.3) is 7 as it is written."""
    assert [taken_groups(10, ratio) for ratio in (0.0, 0.05, 0.1, 0.15, 0.3, 0.99)] == [10, 10, 9, 9, 7, 1]


def test_without_a_size_a_batch_is_what_an_explorer_step_takes(settings):
    """Three of four groups of eight."""
    over = settings("buffer.batch_size=4", "algorithm.repeat_times=8", "explorer.over_rollout.ratio=0.25")
    assert (rows_of_step(over), train_batch(over)) == (24, TrainBatch(24))


def test_settings_that_replay_and_mix_nothing_are_one_part(settings):
    assert train_batch(settings("buffer.batch_size=4", "algorithm.repeat_times=8")) == TrainBatch(32)
    assert train_batch(settings("buffer.train_batch_size=8")) == TrainBatch(8)
