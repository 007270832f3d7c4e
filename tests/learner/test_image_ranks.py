"""Two ranks of which only the first has rows with images see and learn what one rank does, under each ZeRO stage."""

import pytest

from tests import families
from tests.learner.test_ranks import trained

MODULE = "tests.learner.seeing_ranks"
TOWER = "trainer.freeze_vision_tower=false"


@pytest.fixture(scope="module", params=["idefics3", "qwen2_5_vl"])
def model(request, seeing_model, tmp_path_factory):
    if request.param == "idefics3":
        return seeing_model
    return families.seeing(request.param, tmp_path_factory.mktemp("families") / request.param, seeing_model)


@pytest.mark.wide
@pytest.mark.parametrize("tower", ["trainer.freeze_vision_tower=true", TOWER])
def test_three_steps_see_and_learn_the_same(model, tmp_path, tower):
    alone = trained(model, tmp_path / "alone", 1, (tower,), MODULE)
    for stage in (1, 2, 3):
        found = trained(model, tmp_path / f"{stage}", 2, (tower, f"trainer.zero_stage={stage}"), MODULE)
        assert_same(found, alone)


@pytest.mark.slow
def test_ranks_that_share_the_weights_of_a_trained_tower(seeing_model, tmp_path):
    alone = trained(seeing_model, tmp_path / "alone", 1, (TOWER,), MODULE)
    assert_same(trained(seeing_model, tmp_path / "two", 2, (TOWER, "trainer.zero_stage=3"), MODULE), alone)


def assert_same(found: dict, alone: dict) -> None:
    """Within rounding; Adam's steps of gradients near 0 have any sign, so weights are compared by their norms."""
    assert sorted(any(of_rank) for of_rank in found["lots"]) == [False, True]
    for name in ("losses", "norms", "probe"):
        assert found[name] == pytest.approx(alone[name], rel=1e-3, abs=1e-4), name
    for ours, theirs in zip(found["before"] + found["scores"], alone["before"] + alone["scores"], strict=True):
        assert ours == pytest.approx(theirs, abs=2e-3)
    assert found["weights"] == pytest.approx(alone["weights"], rel=1e-3, abs=1e-6)  # biases of keys act on nothing
    assert alone["losses"][0] != alone["losses"][-1]
