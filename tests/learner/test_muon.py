"""Muon for matrices beside AdamW: torch's own step, whatever the ranks, and the same bits after a restart."""

import pytest
import torch

from ouroboros.pipeline.settings.algorithm import Optimizer
from tests.learner.muon import Model, batch, loss, state, train
from tests.learner.test_ranks import trained

MATRICES = ("up.weight", "down.weight")


@pytest.fixture(scope="module")
def by_torch() -> dict[str, list]:
    """The weights after four steps of the two optimizers of torch."""
    model, own = Model(), Optimizer()
    named = dict(model.named_parameters())
    muon = torch.optim.Muon([named.pop(name) for name in MATRICES], lr=1e-2, weight_decay=0.1,
                            adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(named.values(), lr=1e-2, betas=own.betas, weight_decay=0.1)
    for number in range(4):
        model.zero_grad()
        loss(model, batch(number)).backward()
        muon.step()
        adamw.step()
    return state(model)


def assert_equal(found: dict, weights: dict, within: float) -> None:
    assert found["resumed"] == found["whole"]
    for name, values in weights.items():
        assert torch.allclose(torch.tensor(found["whole"][name]), torch.tensor(values), atol=within), name


def test_one_rank_makes_the_steps_of_torch(process, by_torch, tmp_path):
    assert_equal(train(process, tmp_path), by_torch, 1e-6)


@pytest.mark.parametrize(("ranks", "stage"), [
    pytest.param(2, 1, marks=pytest.mark.slow), pytest.param(2, 2, marks=pytest.mark.wide),
    pytest.param(3, 1, marks=pytest.mark.wide), pytest.param(5, 2, marks=pytest.mark.wide)])
def test_matrices_that_ranks_share_make_the_steps_of_whole_ones(ranks, stage, by_torch, tmp_path):
    """A step is rounded to bfloat16: a gradient that differs in its last bit may move a weight by 1/256 of it."""
    found = trained("_", tmp_path / "out.json", ranks, [f"trainer.zero_stage={stage}"], module="tests.learner.muon")
    assert_equal(found, by_torch, 2e-4)
