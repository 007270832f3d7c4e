"""A step whose memory does not suffice is made again with half the token budget; test_ranks.py: on all ranks."""

import pytest

from ouroboros.pipeline.store.errors import StageError
from ouroboros.stages.learner.engine.budget import Budget, Exhausted
from tests.golden.messages import refuses
from tests.learner.exhausted import train


def needs(most: int):
    """Work that fails with more than `most` tokens."""

    def work(tokens: int) -> int:
        if tokens > most:
            raise Exhausted
        return tokens

    return work


def test_half_the_budget_is_tried_once_and_kept_and_holds_the_longest_row():
    budget = Budget(1000)
    assert budget.attempt(needs(1000), 10) == 1000
    assert budget.attempt(needs(600), 10) == budget.tokens == 500
    assert budget.attempt(needs(499), 10) == 250  # in a later step again
    with refuses(StageError, "micro-batches", "125"):
        budget.attempt(needs(100), 10)
    budget = Budget(1000)
    assert budget.attempt(needs(900), 800) == 800
    with pytest.raises(StageError):
        budget.attempt(needs(100), 800)


def test_a_resumed_stage_goes_on_with_it_unless_the_setting_changed():
    half = Budget(1000)
    half.attempt(needs(600), 10)
    same, other, older = Budget(1000), Budget(1200), Budget(1000)
    for budget, saved in ((same, half.saved()), (other, half.saved()), (older, None)):
        budget.restore(saved)
    assert (same.tokens, other.tokens, older.tokens) == (500, 1200, 1000)


@pytest.fixture(scope="module")
def halved(tiny_model, process):
    """The same steps with the smaller budget from the start. The longest row has 36 tokens."""
    return train(tiny_model, process, "nowhere", 40, 0)


def assert_nothing_is_left(found: dict, expected: dict) -> None:
    """Of the failed attempt in gradients or weights: they are equal bit for bit."""
    assert {name: found[name] for name in ("losses", "norms", "weights")} == {
        name: expected[name] for name in ("losses", "norms", "weights")}


@pytest.mark.parametrize("place", ["forward", "backward"])
def test_the_step_after_a_failed_attempt_is_that_of_half_the_budget(halved, tiny_model, process, place):
    found = train(tiny_model, process, place, 80, 0)
    assert (found["budgets"], halved["budgets"]) == ([40, 40], [40, 40])
    assert_nothing_is_left(found, halved)
