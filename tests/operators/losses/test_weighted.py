"""Losses that weigh log-probs, by hand: probability 1/10 before, ratio / 10 now."""

import math

import pytest
import torch

from ouroboros.operators.losses.demonstrations import Sft, SftIs, SftPhi
from ouroboros.operators.losses.vespo import Vespo
from ouroboros.operators.losses.weighted import Cispo, Rec, Topr
from tests.factories import called

sft, sft_is, sft_phi, cispo, rec, topr = map(called, (Sft, SftIs, SftPhi, Cispo, Rec, Topr))


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def scores(function, ratios, advantages, rows=None, **given):
    """-gradient of the summed loss by each log-prob: with what weight a token is pushed up."""
    old = tensor(*[math.log(0.1)] * len(ratios))
    new = (old + tensor(*ratios).log()).requires_grad_()
    rows = {} if function is cispo else {"rows": torch.tensor(rows if rows is not None else range(len(ratios)))}
    loss, statistics = function(new, old, tensor(*advantages), **rows, **given)
    loss.sum().backward()
    return (-new.grad).tolist(), {name: value.tolist() for name, value in statistics.items()}


def test_topr_tapers_failures_by_the_ratio_of_the_response_or_the_token_below_a_threshold():
    """Row 0, A = -1: ratios 1/2 and 4 come to 2, no taper; row 1: 1/2 and 1/2 to 1/4; row 2 succeeds: weight 1."""
    found, statistics = scores(topr, [0.5, 4, 0.5, 0.5, 0.1], [-1, -1, -1, -1, 2], [0, 0, 1, 1, 2])
    assert found == pytest.approx([-1, -1, -0.25, -0.25, 2])
    assert statistics["clip_fraction"] == [0, 0, 1, 1, 0]
    found, _ = scores(topr, [0.5, 4], [-1, -1], [0, 0], level="token")
    assert found == pytest.approx([-0.5, -1])
    assert scores(topr, [0.5], [0.5], advantage_threshold=0.6)[0] == pytest.approx([0.25])
    assert scores(topr, [0.5], [0.5], advantage_threshold=0.5)[0] == pytest.approx([0.25])  # at it, it tapers
    assert scores(topr, [0.5], [0.5], advantage_threshold=0.4)[0] == pytest.approx([0.5])


def test_vespo_fades_on_both_sides_of_the_ratio_of_a_response():
    """Row 0, A = 1: 1/2 and 4 are 2, weight 4 e^(3 (1 - 2)) = 0.199148; row 1, A = -1: 1/2, weight e^(2 (1 - 1/2)) / 8
    = 0.339785; row 2 at ratio 1 is REINFORCE."""
    found, statistics = scores(called(Vespo), [0.5, 4, 0.5, 1.0], [1, 1, -1, -3], [0, 0, 1, 2])
    assert found == pytest.approx([0.199148, 0.199148, -0.339785, -3], abs=1e-6)
    assert statistics["clip_fraction"] == [1, 1, 1, 0]
    assert scores(called(Vespo), [2.0], [0.5])[0] == pytest.approx([0.099574], abs=1e-6)  # A below 1 fades alike


def test_cispo_bounds_the_weight_and_drops_no_token():
    """Above 1.28 the weight stays at 1.28, below it is the ratio itself: 1 - 1.0 = 0 never binds."""
    found, statistics = scores(cispo, [2, 1.1, 0.1], [1, 1, -1])
    assert found == pytest.approx([1.28, 1.1, -0.1])
    assert statistics["clip_fraction"] == [1, 0, 0]


RATIOS, SIGNS = [0.3, 0.7, 1.0, 1.5, 4.0], [1, -1]


@pytest.mark.parametrize(("mode", "positive", "negative"), [
    ("none", [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]), ("two-side", [0, 0, 1, 0, 0], [0, 0, 1, 0, 0]),
    ("one-side", [1, 1, 1, 0, 0], [0, 0, 1, 1, 1]),
    ("ring", [1, 0, 1, 0, 0], [0, 0, 1, 0, 1])])  # 0.3 <= 1 - 0.6 and A > 0; 4 >= 1 + 2 and A < 0
def test_rec_indicators(mode, positive, negative):
    assert scores(rec, RATIOS, [1] * 5, clip_mode=mode)[0] == positive
    assert scores(rec, RATIOS, [-1] * 5, clip_mode=mode)[0] == [-x for x in negative]


def test_demonstrations():
    loss, statistics = sft(tensor(-0.5, -2.0))
    assert loss.tolist() == [0.5, 2.0]
    assert statistics == {}
    logs = tensor(math.log(0.5), math.log(0.9)).requires_grad_()
    assert sft_is(logs)[0].tolist() == pytest.approx([0.5 * math.log(2), -0.9 * math.log(0.9)])
    assert sft_phi(logs)[0].tolist() == pytest.approx([0.25 * math.log(2), -0.09 * math.log(0.9)])
    loss = sft_phi(logs, cutoff_prob=0.8)[0]  # 0.9 is beyond it: the loss is that of 0.8, without a gradient
    assert loss.tolist() == pytest.approx([0.25 * math.log(2), -0.09 * math.log(0.8)])
    loss.sum().backward()
    assert logs.grad.tolist() == pytest.approx([-0.25, 0])
