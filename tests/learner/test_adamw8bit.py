"""AdamW with moments in 8 bits: near torch's steps, two bytes a weight, and the same bits after a restart."""

import pytest
import torch

from ouroboros.pipeline.settings.algorithm import Optimizer
from ouroboros.stages.learner.engine import adamw8bit
from ouroboros.stages.learner.engine.adamw8bit import AdamW8bit
from tests.learner.muon import Model, batch, loss, state, train
from tests.learner.test_ranks import trained

GIVEN = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
EIGHT = "algorithm.optimizer.optimizer_type=adamw8bit"


def stepped(kind, gradients: list[torch.Tensor]) -> tuple[torch.Tensor, torch.optim.Optimizer]:
    weights = torch.nn.Parameter(torch.ones(gradients[0].shape))
    made = kind([weights], **GIVEN)
    for one in gradients:
        weights.grad = one
        made.step()
    return weights.detach(), made


def test_the_first_step_is_that_of_torch_as_it_reads_no_code():
    gradient = [torch.randn(3, 100)]
    assert torch.allclose(*(stepped(kind, gradient)[0] for kind in (AdamW8bit, torch.optim.AdamW)), atol=1e-7)


def test_codes_are_the_nearest_values_of_the_map_and_no_square_becomes_nothing():
    """(1 - 0.9) of gradients 1, 0.5 and 1e-9: shares 1, 0.5 and 1e-9 of the block's largest; of squares 1, 0.25, 1e-18.
    Between 0.1 and 1 the map has 64 steps of 0.0140625 for the mean, and 128 of 0.00703125 for the square."""
    _, made = stepped(AdamW8bit, [torch.tensor([1.0, 0.5, 1e-9])])
    (kept,) = made.state.values()
    mean, square = (adamw8bit._Moment(kept[name], kept[f"{name}_scale"], signed).values()[:3]
                    for name, signed in (("exp_avg", True), ("exp_avg_sq", False)))
    assert mean.tolist() == pytest.approx([0.1, 0.0500781, 0.0], abs=1e-7)  # 0.500781 = 0.1 + 28.5 steps
    assert square[:2].tolist() == pytest.approx([1e-3, 0.251172e-3], abs=1e-9)  # 0.251172 = 0.1 + 21.5 steps
    assert 0 < square[2] < 1e-9


def test_two_bytes_a_weight_are_kept_and_each_block_has_its_scale(monkeypatch):
    monkeypatch.setattr(adamw8bit, "CHUNK", 512)
    gradients = [torch.cat([torch.randn(300), 1e-4 * torch.randn(900)]) for _ in range(3)]
    found, made = stepped(AdamW8bit, gradients)
    (kept,) = made.state.values()
    assert sum(one.nbytes for one in kept.values()) == 4 + 5 * (2 * 256 + 2 * 4)  # step; 1,200 weights are 5 blocks
    away = (found - stepped(torch.optim.AdamW, gradients)[0]).abs()
    assert away[512:].mean() < 5e-4  # of three steps of about 0.01; behind the block that has gradients of both sizes


def test_a_restart_goes_on_with_the_same_bits_near_the_steps_of_torch(process, tmp_path):
    model, own = Model(), Optimizer()
    plain = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=own.betas, weight_decay=0.1)
    for number in range(4):
        model.zero_grad()
        loss(model, batch(number)).backward()
        plain.step()
    found = train(process, tmp_path, EIGHT)
    assert found["resumed"] == found["whole"]
    for name, values in state(model).items():
        assert torch.allclose(torch.tensor(found["whole"][name]), torch.tensor(values), atol=4e-3), name


@pytest.mark.parametrize(("ranks", "stage"), [
    pytest.param(2, 1, marks=pytest.mark.slow), pytest.param(2, 2, marks=pytest.mark.wide),
    pytest.param(3, 3, marks=pytest.mark.wide)])
def test_ranks_go_on_with_the_same_bits(ranks, stage, tmp_path):
    found = trained("_", tmp_path / "out.json", ranks, [f"trainer.zero_stage={stage}", EIGHT],
                    module="tests.learner.muon")
    assert found["resumed"] == found["whole"]
