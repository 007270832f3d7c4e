"""Settings that are counted in optimizer steps, in stages that are too short for them."""

import pytest

from ouroboros.pipeline.check.batch import evaluated_versions
from ouroboros.pipeline.check.batch import notes as step_notes
from ouroboros.pipeline.job.schedule import rft_schedule
from tests.golden.messages import wording
from tests.pipeline.check.test_workload import stage


def beside_few(config) -> list:
    """The notes on a stage without the one on how few steps it makes."""
    return [note for note in step_notes(config) if note.key != "buffer.total_steps"]


@pytest.mark.parametrize(("steps", "warns"), [(29, True), (30, False), (None, False)])
def test_fewer_steps_than_teach_are_told(steps, warns):
    for kind in ("rft", "sft"):
        of_stage = {f"{'stages__sft__' * (kind == 'sft')}buffer__total_steps": steps}
        found = step_notes(stage(kind, **of_stage, algorithm__optimizer__lr_warmup_steps=0,
                                 stages__sft__algorithm__optimizer__lr_warmup_steps=0))
        assert [(one.key, one.found) for one in found] == [("buffer.total_steps", steps)] * warns


@pytest.mark.parametrize(("every", "interval", "train_batch", "versions", "advice"), [
    (3, 2, 512, [4, 6, 10, 12], "2 or 4"),  # handed 2, 4, 6, ...: the first to reach 3, 6, 9, 12
    (6, 1, 128, [8, 12, 20, 24], "4 or 8"),  # an explorer step is four trainer steps: 4, 8, 12, ...
    (5, 3, 128, [6, 12, 15, 24], "12"),  # after 4, 8, 12, 16, 20, 24 steps: 3, 6, 12, 15, 18, 24 are handed over
    (1, 4, 512, [4], "4")])
def test_what_an_interval_of_evaluations_comes_to_is_said(every, interval, train_batch, versions, advice):
    found = stage("rft", explorer__eval_interval=every, synchronizer__sync_interval=interval,
                  buffer__train_batch_size=train_batch)
    assert evaluated_versions(every, rft_schedule(found, 1000), None) == versions
    (note,) = step_notes(found)
    wording(note, advice)


def test_no_step_beyond_the_last_is_spoken_of():
    """10 steps of 128 of 512 rows are 3 explorer steps. Without running ahead the last has the weights of 8 steps, of
    which 6 is a multiple of 3: the one evaluation. Every 12, the next distance that fits, is more than there are."""
    found = stage("rft", explorer__eval_interval=5, synchronizer__sync_interval=3, synchronizer__sync_offset=0,
                  buffer__train_batch_size=128, buffer__total_steps=10, algorithm__optimizer__lr_warmup_steps=0)
    assert evaluated_versions(5, rft_schedule(found, 1), 8) == [6]
    (note,) = beside_few(found)
    wording(note, "6 are")
    (note,) = beside_few(found.but("explorer.eval_interval", 7))
    wording(note.needed, "step 6")


@pytest.mark.parametrize("every", [2, 4, 100, None])
def test_an_interval_that_weights_are_handed_over_at_is_not_spoken_of(every):
    assert step_notes(stage("rft", explorer__eval_interval=every)) == []
    assert step_notes(stage("sft", explorer__eval_interval=every and every + 1)) == []


def test_a_warmup_that_is_longer_than_the_stage_is_told():
    """After 40 of 160 steps the rate stands at a quarter."""
    def notes(warmup: int) -> list[str]:
        return step_notes(stage("sft", stages__sft__algorithm__optimizer__lr_warmup_steps=warmup,
                                stages__sft__buffer__total_steps=40))

    (note,) = notes(160)
    assert (note.key, note.found) == ("algorithm.optimizer.lr_warmup_steps", 160)
    assert "25%" in note.needed
    assert notes(40) == []


def test_a_stage_that_learns_nothing_is_told():
    def keys(kind: str, **values) -> list[str]:
        return [note.key for note in step_notes(stage(kind, **values))]

    ppo = {"algorithm__advantage_fn": "ppo", "trainer__critic__optimizer__lr": 0}
    assert keys("rft", algorithm__optimizer__lr=0) == ["algorithm.optimizer.lr"]
    assert keys("rft", **ppo) == ["trainer.critic.optimizer.lr"]
    assert keys("rft", trainer__critic__optimizer__lr=0) == []  # no algorithm of critics
    bound = "algorithm__rollout_rejection__token_k1"
    for pair, warns in (([1.0, 3.0], True), ([1.5, 3.0], True), ([0.2, 0.9], True), ([0.5, 3.0], False)):
        assert keys("rft", **{bound: pair}) == ["algorithm.rollout_rejection.token_k1"] * warns


def test_a_critic_that_never_lets_the_policy_learn_is_told():
    values = {"algorithm__advantage_fn": "ppo", "trainer__critic__optimizer__lr_warmup_steps": 21}
    first, second = beside_few(stage("rft", **values, trainer__critic_warmup=20, buffer__total_steps=20))
    assert (first.key, first.found) == ("trainer.critic.optimizer.lr_warmup_steps", 21)
    assert (second.key, second.found) == ("trainer.critic_warmup", 20)
    assert beside_few(stage("rft", **values, trainer__critic_warmup=19, buffer__total_steps=21)) == []


def test_weights_that_are_never_handed_over_are_told():
    """8 steps of one explorer step each: a handover after 8 is one that no explorer step waits for, after 7 one is."""
    of = {"synchronizer__sync_offset": 0, "buffer__total_steps": 8, "algorithm__optimizer__lr_warmup_steps": 0}
    (note,) = beside_few(stage("rft", **of, synchronizer__sync_interval=8))
    assert (note.key, note.found) == ("synchronizer.sync_interval", 8)
    assert beside_few(stage("rft", **of, synchronizer__sync_interval=7)) == []
    assert beside_few(stage("rft", **{**of, "buffer__total_steps": 1}, synchronizer__sync_interval=9)) == []


def test_of_a_stage_whose_length_is_not_known_nothing_is_said_that_depends_on_it():
    found = stage("rft", buffer__total_steps=None, synchronizer__sync_interval=999, trainer__critic_warmup=999,
                  algorithm__advantage_fn="ppo", algorithm__optimizer__lr_warmup_steps=9999)
    assert step_notes(found) == []
