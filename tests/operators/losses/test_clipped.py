"""Losses on clipped ratios, one token at a time, by hand."""

import math

import numpy as np
import pytest
import torch

from ouroboros.operators.aggregation import token_weights
from ouroboros.operators.losses import clipped, divergence
from ouroboros.operators.losses.luspo import Luspo
from tests.factories import called

decoupled_ppo, gmpo, gspo, m2po, ppo, sapo, sppo = map(called, (
    clipped.DecoupledPpo, clipped.Gmpo, clipped.Gspo, clipped.M2po, clipped.Ppo, clipped.Sapo, clipped.Sppo))
dppo_kl, dppo_tv = called(divergence.DppoKl), called(divergence.DppoTv)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def tokens(function, ratios, advantages, rows=None, gradient=False, **given):
    """Loss (or gradient) of tokens whose probability went from 1/10 to ratio / 10."""
    old = tensor(*[math.log(0.1)] * len(ratios))
    new = (old + tensor(*ratios).log()).requires_grad_()
    columns = {"rows": torch.tensor(rows if rows is not None else range(len(ratios)))} if function in ROWS else {}
    loss, statistics = function(new, old, tensor(*advantages), **columns, **given)
    if gradient:
        loss.sum().backward()
        return new.grad.tolist()
    return loss.tolist(), {name: value.tolist() for name, value in statistics.items()}


ROWS = (ppo, gmpo, gspo, m2po)


@pytest.mark.parametrize(("ratio", "advantage", "loss", "clipped", "bounded"), [
    (1.0, 2.0, -2.0, 0, 0), (1.1, 1.0, -1.1, 0, 0),
    (1.5, 1.0, -1.2, 1, 0),   # max(-1.5, -1.2): a better token may gain no more
    (0.5, 1.0, -0.5, 0, 0),   # max(-0.5, -0.8): on its way back it is not held
    (0.5, -1.0, 0.8, 1, 0),   # max(0.5, 0.8): a worse token may lose no more
    (1.5, -1.0, 1.5, 0, 0),   # max(1.5, 1.2)
    (5.0, -1.0, 3.0, 0, 1),   # dual clip: max(5, 1.2) = 5, at most 3
    (5.0, -2.0, 6.0, 0, 1),
    (5.0, 1.0, -1.2, 1, 0),   # no dual clip where the advantage is positive
    (2.0, 0.0, 0.0, 0, 0)])
def test_ppo_clips_both_sides(ratio, advantage, loss, clipped, bounded):
    found, statistics = tokens(ppo, [ratio], [advantage])
    assert found == pytest.approx([loss])
    assert statistics["clip_fraction"] == [clipped]
    assert statistics["clip_fraction_lower"] == [bounded]


def test_ppo_clips_higher_above_than_below():
    """One bound alone leaves the other at clip_range."""
    found, statistics = tokens(ppo, [1.25, 1.30, 0.75], [1.0, 1.0, -1.0], clip_range_high=0.28)
    assert found == pytest.approx([-1.25, -1.28, 0.8])
    assert statistics["clip_fraction"] == [0, 1, 1]
    assert tokens(ppo, [1.25, 0.85], [1.0, -1.0], clip_range=0.1)[0] == pytest.approx([-1.1, 0.9])


def test_kl_is_the_k3_estimate():
    """ratio 2: 2 - 1 - ln 2 = 0.306853; ratio 1: 0; ratio 1/2: 0.193147; never negative."""
    assert tokens(ppo, [2.0, 1.0, 0.5], [1.0] * 3)[1]["kl"] == pytest.approx([0.306853, 0, 0.193147], abs=1e-6)


def test_ppo_masks_failures_of_rows_that_have_drifted():
    """Row 0 lost ln 2 a token on average, more than 0.1: its failure teaches nothing; row 1 has not moved."""
    ratios, rows = [0.25, 1.0, 1.0], [0, 0, 1]
    found, statistics = tokens(ppo, ratios, [-1.0] * 3, rows, enable_sequence_masking=True)
    assert found == pytest.approx([0, 0, 1.0])
    assert statistics["sequence_masked"] == [1, 1, 0]
    assert tokens(ppo, ratios, [1.0] * 3, rows, enable_sequence_masking=True)[0] == pytest.approx([-0.25, -1, -1])
    looser = tokens(ppo, ratios, [-1.0] * 3, rows, enable_sequence_masking=True, delta_sequence_masking=0.7)
    assert looser[0] == pytest.approx([0.8, 1.0, 1.0])  # ln 2 = 0.693 is within 0.7


def test_decoupled_ppo_clips_around_the_newer_policy_and_weighs_by_the_older():
    """prox / old = 2. pi / prox 1.5 clips to 1.2: 2 * -1.2; pi / prox 1: -2, or -1.5 with the weight capped."""
    old, prox = tensor(-3, -3), tensor(-3, -3) + math.log(2)
    new = prox + tensor(1.5, 1.0).log()
    loss, statistics = decoupled_ppo(new, old, prox, tensor(1, 1))
    assert loss.tolist() == pytest.approx([-2.4, -2.0])
    assert statistics["clip_fraction"].tolist() == [1, 0]
    assert statistics["behave_weight"].tolist() == pytest.approx([2, 2])
    capped, _ = decoupled_ppo(new, old, prox, tensor(1, 1), behave_weight_cap=1.5)
    assert capped.tolist() == pytest.approx([-1.8, -1.5])


def test_gspo_compares_whole_responses():
    """Row 0: ratios 4 and 1, geometric mean 2, clipped to 1.0004; row 1: 1/2 and 1/2. A = 1 and 1."""
    found, statistics = tokens(gspo, [4.0, 1.0, 0.5, 0.5], [1.0] * 4, [0, 0, 1, 1])
    assert found == pytest.approx([-1.0004, -1.0004, -0.5, -0.5])
    assert statistics["clip_fraction"] == [1, 1, 0, 0]
    assert tokens(gspo, [4.0, 1.0], [-1.0] * 2, [0, 0])[0] == pytest.approx([2.0, 2.0])


def test_luspo_weighs_a_response_by_its_length():
    """Rows of 3 and 1 tokens at ratio 1, A = 1: 3 and 1 of two responses, and the gradient of each token is -1/2."""
    loss, weights = Luspo(), np.repeat(token_weights(Luspo.aggregation, [3, 1]), [3, 1])
    new = tensor(*[math.log(0.1)] * 4).requires_grad_()
    total = (loss(new, new.detach(), tensor(1, 1, 1, 1), torch.tensor([0, 0, 0, 1]))[0] * torch.tensor(weights)).sum()
    total.backward()
    assert total.item() == pytest.approx(-2.0)
    assert new.grad.tolist() == pytest.approx([-0.5] * 4)
    drifted, statistics = loss(new + math.log(1.01), new.detach(), tensor(1, 1, 1, 1), torch.tensor([0, 0, 0, 1]))
    assert drifted.tolist() == pytest.approx([-1.0025] * 4)
    assert statistics["clip_fraction"].tolist() == [1] * 4


def test_sapo_is_the_papers_objective_and_fades_on_both_sides():
    """Ratio 1: -A 4 / tau / 2. Its gate there is 1, and 4 s (1 - s) elsewhere: ratio 3: s = sigmoid(2), gate 0.42."""
    assert tokens(sapo, [1.0, 1.0], [1.0, -1.0])[0] == pytest.approx([-2.0, 2 / 1.05])
    s = 1 / (1 + math.exp(-2))
    expected = [-1.0, 1.0, -4 * s * (1 - s) * 3]
    assert tokens(sapo, [1.0, 1.0, 3.0], [1.0, -1.0, 1.0], gradient=True) == pytest.approx(expected)
    assert tokens(sapo, [5.0, 20.0], [1.0, 1.0], gradient=True) == pytest.approx([-0.35325, 0], abs=1e-5)
    statistics = tokens(sapo, [1.0, 3.0], [1.0, 1.0])[1]
    assert statistics["soft_gate"] == pytest.approx([1.0, 0.41997], abs=1e-5)
    assert statistics["clip_fraction"] == [0, 1]


def test_m2po_drops_the_largest_moments_of_a_row_until_the_mean_is_within():
    """Log ratios 0.1, 0.3 and 0.6, A = 1: moments 0.01, 0.09, 0.36. Means of the smallest: 0.01, 0.05, 0.153.

    Threshold 0.06 keeps two. In row 1 a log ratio of 0.2 alone has 0.04, within; and a token that PPO could not clip
    (A > 0, ratio below 1) is kept however far it is.
    """
    ratios = [math.exp(x) for x in (0.1, 0.6, 0.3, 0.2, -2.0)]
    found, statistics = tokens(m2po, ratios, [1.0] * 5, [0, 0, 0, 1, 1], m2_threshold=0.06)
    assert found == pytest.approx([-ratios[0], 0, -ratios[2], -ratios[3], -ratios[4]])
    assert statistics["clip_fraction"] == [0, 1, 0, 0, 0]
    assert tokens(m2po, ratios, [1.0] * 5, [0, 0, 0, 1, 1], m2_threshold=1e-12)[0] == pytest.approx(
        [0, 0, 0, 0, -ratios[4]])


def test_sppo_is_a_log_ratio_inside_a_region():
    """1 / 1.3 = 0.769 to 1.3, both sides alike, whatever the advantage."""
    found, statistics = tokens(sppo, [1.2, 1.4, 0.8, 0.7], [1.0, 1.0, -1.0, 1.0])
    assert found == pytest.approx([-math.log(1.2), 0, math.log(0.8), 0])
    assert statistics["clip_fraction"] == [0, 1, 0, 1]
    assert tokens(sppo, [1.2, 1.4], [2.0, 2.0], gradient=True) == pytest.approx([-2.0, 0.0])
    assert tokens(sppo, [0.78, 0.76, 0.72], [2.0] * 3, gradient=True) == pytest.approx([-2.0, 0.0, 0.0])  # not 0.7


def test_gmpo_is_the_geometric_mean_of_clipped_ratios():
    """Row 0, A = 2: ratios 4 and 1/4, of which e^0.4 and 1/4 count: exp((0.4 - ln 4) / 2) = 0.610701, loss -1.221403.

    Row 1, A = -1: ratio 1/4 counts as e^-0.4 = 0.670320. By ratios clipped together, row 0 would be 1.
    """
    found, statistics = tokens(gmpo, [4.0, 0.25, 0.25], [2.0, 2.0, -1.0], [0, 0, 1])
    assert found == pytest.approx([-1.221403, -1.221403, 0.670320], abs=1e-6)
    assert statistics["clip_fraction"] == [1, 0, 1]
    gradient = tokens(gmpo, [4.0, 0.25, 0.25], [2.0, 2.0, -1.0], [0, 0, 1], gradient=True)
    assert gradient == pytest.approx([0, -1.221403, 0], abs=1e-6)  # two tokens, each with half of the row's loss


@pytest.mark.parametrize(("function", "ratio", "advantage", "loss"), [
    (dppo_tv, 2.0, 1.0, -2.0),   # 0.1 to 0.2: within 0.15, though the ratio is 2
    (dppo_tv, 3.0, 1.0, 0.0),    # to 0.3: 0.2 is beyond
    (dppo_tv, 3.0, -1.0, 3.0),   # away from where A points it may be anywhere
    (dppo_kl, 2.0, 1.0, -2.0),   # 0.1 ln(1/2) + 0.9 ln(9/8) = 0.0367 nats
    (dppo_kl, 3.0, 1.0, 0.0),    # 0.1 ln(1/3) + 0.9 ln(9/7) = 0.1163
    (dppo_kl, 0.9, -1.0, 0.9),   # 0.1 ln(1 / 0.9) + 0.9 ln(0.9 / 0.91) = 0.0006
    (dppo_kl, 3.0, -1.0, 3.0),   # away from where A points
    (dppo_kl, 0.1, -1.0, 0.1)])  # 0.1 to 0.01: 0.1 ln 10 + 0.9 ln(0.9 / 0.99) = 0.1445 is beyond
def test_dppo_bounds_a_divergence(function, ratio, advantage, loss):
    """The loss is -A ratio log pi; log pi is ln 0.1 + ln ratio."""
    beyond = loss == 0.0 or (function is dppo_kl and ratio == 0.1)
    expected = 0.0 if beyond else loss * (math.log(0.1) + math.log(ratio))
    found, statistics = tokens(function, [ratio], [advantage])
    assert found == pytest.approx([expected])
    assert statistics["clip_fraction"] == [beyond]
    assert tokens(function, [ratio], [advantage], gradient=True) == pytest.approx([0.0 if beyond else loss])


def test_dppo_cuts_weights():
    found, statistics = tokens(dppo_tv, [4.0], [-1.0], clip_ratio_c=2.5)
    assert found == pytest.approx([2.5 * math.log(0.4)])
    assert statistics["cut_fraction"] == [1]
