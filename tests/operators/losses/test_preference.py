"""Preference losses by hand: two pairs in one micro-batch, responses of different lengths."""

import math

import pytest
import torch

from ouroboros.operators.aggregation import token_weights
from ouroboros.operators.losses.preference import Dpo, Kto, Orpo, Simpo
from tests.factories import called

dpo, kto, orpo, simpo = map(called, (Dpo, Kto, Orpo, Simpo))

# log-ratios: pair 0 chosen 1 + 1, rejected -1; pair 1 chosen 0, rejected 0.5 + 0.5 + 0.5 + 0.5
GAPS = [1.0, 1.0, -1.0, 0.0, 0.5, 0.5, 0.5, 0.5]
ROWS = [0, 0, 1, 2, 3, 3, 3, 3]


def losses(function, **given):
    """(loss of each token, the mean that the learner forms, statistics)"""
    gaps = torch.tensor(GAPS, dtype=torch.float64, requires_grad=True)
    loss, statistics = function(gaps - 2.0, torch.full_like(gaps, -2.0), torch.tensor(ROWS), **given)
    weights = torch.from_numpy(token_weights("seq-mean-token-mean", [2, 1, 1, 4]))[torch.tensor(ROWS)]
    return loss.tolist(), (loss * weights).sum(), gaps, {name: value.tolist() for name, value in statistics.items()}


def minus_log_sigmoid(x):
    return math.log1p(math.exp(-x))


def test_dpo_sums_by_row_and_means_over_pairs():
    """Margins 0.1 (2 + 1) = 0.3 and 0.1 (0 - 2) = -0.2. One sum over the micro-batch would give 0.1 (2 - 1)."""
    found, mean, _, statistics = losses(dpo)
    first, second = minus_log_sigmoid(0.3), minus_log_sigmoid(-0.2)
    assert found == pytest.approx([first] * 3 + [second] * 5)
    assert mean.item() == pytest.approx((first + second) / 2)
    assert statistics["chosen_reward"] == pytest.approx([0.2] * 3 + [0.0] * 5)
    assert statistics["rejected_reward"] == pytest.approx([-0.1] * 3 + [0.2] * 5)
    assert statistics["accuracy"] == [1] * 3 + [0] * 5


def test_kto_judges_each_response_by_itself():
    """beta 1, z = 1/2: sigmoid(0.5 - 2), sigmoid(-1 - 0.5), sigmoid(0.5 - 0), sigmoid(2 - 0.5)."""
    found, mean, _, _ = losses(kto, beta=1.0, reference_point=0.5, undesirable_weight=2.0)
    s = [1 / (1 + math.exp(-x)) for x in (-1.5, -1.5, 0.5, 1.5)]
    assert found == pytest.approx([s[0]] * 2 + [2 * s[1], s[2]] + [2 * s[3]] * 4)
    assert mean.item() == pytest.approx((s[0] + 2 * s[1] + s[2] + 2 * s[3]) / 4)


def test_kto_takes_an_estimate_of_the_kl_like_a_given_one_and_tells_it():
    found, _, _, statistics = losses(kto, beta=1.0, estimated_kl=torch.full((8,), 0.5), estimate_kl=True)
    assert found == losses(kto, beta=1.0, reference_point=0.5)[0]
    assert statistics["estimated_kl"] == [0.5] * 8


def test_robust_is_right_in_the_mean_over_flipped_labels():
    """Of the true margin 3: flipped with chance 1/4, the mean of the loss is that of dpo on true labels."""
    given = {"ref_logprobs": torch.zeros(2, dtype=torch.float64), "rows": torch.tensor([0, 1]), "beta": 1.0,
             "loss_type": "robust", "label_smoothing": 0.25}
    kept, flipped = (dpo(torch.tensor(gaps, dtype=torch.float64), **given)[0][0].item()
                     for gaps in ([3.0, 0.0], [0.0, 3.0]))
    assert 0.75 * kept + 0.25 * flipped == pytest.approx(minus_log_sigmoid(3))


def without_reference(function, logprobs, rows, **given):
    columns = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    loss, statistics = function(columns, torch.tensor(rows), **given)
    return loss, columns, {name: value.tolist() for name, value in statistics.items()}


def test_simpo_compares_means_with_a_margin():
    """Means -1 and -2 over 2 and 1 tokens: 2 (-1 + 2) - 1 = 1. Each chosen token has half of -beta sigmoid(-1)."""
    loss, columns, statistics = without_reference(simpo, [-0.5, -1.5, -2.0], [0, 0, 1])
    assert loss.tolist() == pytest.approx([minus_log_sigmoid(1)] * 3)
    loss[0].backward()
    assert columns.grad.tolist() == pytest.approx([-1 / (1 + math.e), -1 / (1 + math.e), 2 / (1 + math.e)])
    assert statistics["chosen_reward"] == pytest.approx([-2.0] * 3)


def test_orpo_adds_the_odds_to_the_likelihood():
    """p = 3/4 and 1/2: odds 3 and 1, so -log(3/4) - 0.1 log sigmoid(log 3) = -log(3/4) - 0.1 log(3/4)."""
    loss, _, statistics = without_reference(orpo, [2 * math.log(0.75), 0.0, math.log(0.5)], [0, 0, 1])
    assert loss.tolist() == pytest.approx([-1.1 * math.log(0.75)] * 3)
    assert statistics["log_odds_ratio"] == pytest.approx([math.log(3)] * 3)
    same, columns, _ = without_reference(orpo, [-1.0, -1.0], [0, 1])
    same[0].backward()
    assert columns.grad.sum().item() == pytest.approx(-1)  # of the likelihood; the odds' cancel
