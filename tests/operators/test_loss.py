"""Policy losses, token by token, against numbers worked out by hand and against finite differences."""

import math

import pytest
import torch

from operators.arguments import needed_columns
from operators.loss import POLICY_LOSSES, ppo, sft


def one(ratio: float, advantage: float, **arguments) -> tuple[float, float, float]:
    """(loss, clip_fraction, kl) of one token whose probability went from 1/10 to ratio / 10."""
    old = torch.tensor([math.log(0.1)], dtype=torch.float64)
    loss, statistics = ppo(old + math.log(ratio), old, torch.tensor([advantage], dtype=torch.float64), **arguments)
    return loss.item(), statistics["clip_fraction"].item(), statistics["kl"].item()


@pytest.mark.parametrize(("ratio", "advantage", "loss", "clipped"), [
    (1.0, 2.0, -2.0, 0.0),
    (1.1, 1.0, -1.1, 0.0),
    (1.5, 1.0, -1.2, 1.0),   # max(-1.5, -1.2): a better token may gain no more
    (0.5, 1.0, -0.5, 0.0),   # max(-0.5, -0.8): on its way back it is not held
    (0.5, -1.0, 0.8, 1.0),   # max(0.5, 0.8): a worse token may lose no more
    (1.5, -1.0, 1.5, 0.0),   # max(1.5, 1.2)
    (5.0, -1.0, 3.0, 0.0),   # dual clip: max(5, 1.2) = 5, at most 3
    (5.0, -2.0, 6.0, 0.0),
    (5.0, 1.0, -1.2, 1.0),   # no dual clip where the advantage is positive
    (2.0, 0.0, 0.0, 0.0),
])
def test_ppo_clips_both_sides(ratio, advantage, loss, clipped):
    assert one(ratio, advantage)[:2] == pytest.approx((loss, clipped))


def test_ppo_clips_higher_above_than_below():
    assert one(1.25, 1.0, clip_range_high=0.28)[:2] == pytest.approx((-1.25, 0.0))
    assert one(1.30, 1.0, clip_range_high=0.28)[:2] == pytest.approx((-1.28, 1.0))
    assert one(0.75, -1.0, clip_range_high=0.28)[:2] == pytest.approx((0.8, 1.0))


def test_kl_is_the_k3_estimate():
    """ratio 2: 2 - 1 - ln 2 = 0.306853; ratio 1: 0; never negative."""
    assert one(2.0, 1.0)[2] == pytest.approx(0.306853, abs=1e-6)
    assert one(1.0, 1.0)[2] == 0.0
    assert one(0.5, 1.0)[2] == pytest.approx(0.193147, abs=1e-6)


@pytest.mark.parametrize(("advantage", "loss"), [(1.0, -1.2), (-1.0, 3.0)])
def test_an_impossible_token_does_not_overflow(advantage, loss):
    new, old = torch.tensor([0.0], requires_grad=True), torch.tensor([-1000.0])
    value, statistics = ppo(new, old, torch.tensor([advantage]))
    value.sum().backward()
    assert value.item() == pytest.approx(loss)
    assert all(torch.isfinite(x).all() for x in (new.grad, *statistics.values()))


def test_the_gradient_is_that_of_finite_differences():
    """Central differences in float64, away from the kinks; at ratio 1 it is -A (policy gradient)."""
    ratios = torch.tensor([1.0, 1.1, 1.5, 0.5, 0.5, 1.5, 5.0, 2.5], dtype=torch.float64)
    advantages = torch.tensor([1.0, -2.0, 1.0, 1.0, -1.0, -1.0, -1.0, -0.5], dtype=torch.float64)
    old = torch.full_like(ratios, -1.5)
    new = (old + ratios.log()).requires_grad_()
    ppo(new, old, advantages)[0].sum().backward()
    step = 1e-6
    differences = (ppo(new + step, old, advantages)[0] - ppo(new - step, old, advantages)[0]) / (2 * step)
    torch.testing.assert_close(new.grad, differences.detach(), atol=1e-8, rtol=1e-6)
    # by hand: -A ratio where it is not clipped, 0 where it is
    torch.testing.assert_close(new.grad, torch.tensor([-1.0, 2.2, 0.0, -0.5, 0.0, 1.5, 0.0, 1.25], dtype=torch.float64))


def test_statistics_carry_no_gradient():
    new = torch.tensor([-1.0], requires_grad=True)
    _, statistics = ppo(new, torch.tensor([-2.0]), torch.tensor([1.0]))
    assert not any(value.requires_grad for value in statistics.values())


def test_sft_is_the_negative_log_likelihood():
    loss, statistics = sft(torch.tensor([-0.5, -2.0]))
    assert loss.tolist() == [0.5, 2.0]
    assert statistics == {}


def test_every_loss_keeps_the_shape_of_its_tokens():
    columns = {"logprobs": torch.zeros(5), "old_logprobs": torch.zeros(5), "advantages": torch.ones(5)}
    for function in POLICY_LOSSES.values():
        loss, statistics = function(**{name: columns[name] for name in needed_columns(function)})
        assert loss.shape == (5,)
        assert all(value.shape == (5,) for value in statistics.values())
