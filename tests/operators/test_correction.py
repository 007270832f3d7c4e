"""Importance correction by hand: rows of two and one token, ratios trainer / rollout 4, 1/2 and 3."""

import math
from dataclasses import asdict

import pytest
import torch

from ouroboros.operators.correction import Mismatch, importance_correction, mismatch, rejected

ROWS = torch.tensor([0, 0, 1])
ROLLOUT = torch.tensor([-2.0, -2.0, -2.0], dtype=torch.float64)
TRAINER = ROLLOUT + torch.tensor([4.0, 0.5, 3.0], dtype=torch.float64).log()


@pytest.mark.parametrize(("level", "mode", "weights", "corrected"), [
    ("none", "truncate", [1, 1, 1], [0, 0, 0]), ("token", "truncate", [2.5, 0.5, 2.5], [1, 0, 1]),
    ("token", "mask", [0, 0.5, 0], [1, 0, 1]),
    ("sequence", "truncate", [2, 2, 2.5], [0, 0, 1]),  # 4 * 1/2 = 2 for both tokens of row 0
    ("sequence", "mask", [2, 2, 0], [0, 0, 1])])
def test_weights(level, mode, weights, corrected):
    found, statistics = importance_correction(TRAINER, ROLLOUT, ROWS, level, mode, threshold=2.5)
    assert found.tolist() == pytest.approx(weights)
    assert statistics["corrected"].tolist() == corrected


def test_equal_log_probs_need_no_correction_and_weights_have_no_gradient():
    new = ROLLOUT.clone().requires_grad_()
    for level in ("none", "token", "sequence"):
        for mode in ("truncate", "mask"):
            weights, _ = importance_correction(new, ROLLOUT, ROWS, level, mode)
            assert weights.tolist() == [1, 1, 1]
            assert not weights.requires_grad


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("gap", [1000.0, -1000.0])
def test_a_token_that_one_side_finds_impossible(level, gap):
    weights, _ = importance_correction(ROLLOUT.float() + gap, ROLLOUT.float(), ROWS, level, threshold=1e9)
    assert torch.isfinite(weights).all()


def test_mismatch_of_a_batch():
    """Ratios 2 and 1/2: |ln 2| twice; 2 - 1 - ln 2 and 1/2 - 1 + ln 2, mean 1/4; 2 ln 2 - 1 and 1/2 - ln 2 / 2.

    Weights 2 and 1/2: (5/2)^2 / (2 * 17/4) = 0.735294.
    """
    trainer = ROLLOUT[:2] + torch.tensor([2.0, 0.5], dtype=torch.float64).log()
    weights, statistics = importance_correction(trainer, ROLLOUT[:2], torch.tensor([0, 1]), threshold=2.0)
    found = mismatch(trainer, ROLLOUT[:2], weights, statistics["corrected"])
    assert asdict(found) == pytest.approx({
        "mismatch_mean": math.log(2), "mismatch_max": math.log(2), "kl_rollout_trainer": 0.25,
        "kl_trainer_rollout": (2 * math.log(2) - 1 + 0.5 - math.log(2) / 2) / 2,
        "effective_sample_size": 6.25 / 8.5, "corrected_fraction": 0.0,
        "mismatch_p95": math.log(2), "mismatch_outside": 1.0})


def test_mismatch_of_most_tokens():
    """20 tokens: 95% of them differ by at most 0.1, of ratio 1.105; the last by 1, of ratio 2.7."""
    change = torch.tensor([0.0] * 10 + [0.1] * 9 + [1.0], dtype=torch.float64)
    found = mismatch(change, torch.zeros(20), torch.ones(20), torch.zeros(20))
    assert (found.mismatch_p95, found.mismatch_outside) == pytest.approx((0.1, 0.05))
    assert found.mismatch_max == pytest.approx(1.0)


def test_mismatch_where_there_is_none():
    weights, statistics = importance_correction(ROLLOUT, ROLLOUT, ROWS)
    assert mismatch(ROLLOUT, ROLLOUT, weights, statistics["corrected"]) == Mismatch()
    nothing = torch.zeros(0)
    assert mismatch(nothing, nothing, nothing, nothing).effective_sample_size == 1
    assert mismatch(TRAINER, ROLLOUT, torch.zeros(3), torch.ones(3)).effective_sample_size == 0  # all masked


@pytest.mark.parametrize(("name", "bound", "out"), [
    ("token_k1", [0.3, 2.5], [1, 0, 0]),      # engine / trainer: 1/4, 2 and 1/3
    ("token_k2", 0.7, [1, 0, 0]),             # half of (ln 4)^2, (ln 2)^2, (ln 3)^2: 0.961, 0.240, 0.603
    ("token_k3", 0.5, [1, 0, 1]),             # 4 - 1 - ln 4 = 1.614, 1/2 - 1 + ln 2 = 0.193, 3 - 1 - ln 3 = 0.901
    ("seq_sum_k1", [0.4, 1.0], [0, 0, 1]),    # 1/2 of the first row, 1/3 of the second
    ("seq_sum_k2", 1.0, [1, 1, 0]),           # 1.201
    ("seq_sum_k3", 1.0, [1, 1, 0]),           # 1.807
    ("seq_mean_k1", [0.6, 1.0], [0, 0, 1]),   # sqrt(1/2) = 0.707
    ("seq_mean_k2", 0.601, [0, 0, 1]),        # 0.6005
    ("seq_mean_k3", 0.902, [1, 1, 0]),        # 0.9035
    ("seq_max_k2", 0.7, [1, 1, 0]), ("seq_max_k3", 1.0, [1, 1, 0])])
def test_what_is_rejected(name, bound, out):
    found = rejected(TRAINER, ROLLOUT, ROWS, {name: bound})
    assert found.tolist() == [bool(one) for one in out]
    assert not rejected(ROLLOUT, ROLLOUT, ROWS, {name: bound}).any()


def test_every_bound_must_hold():
    assert rejected(TRAINER, ROLLOUT, ROWS, {"token_k2": 0.7, "seq_sum_k1": [0.4, 1.0]}).tolist() == [True, False, True]
    assert not rejected(TRAINER, ROLLOUT, ROWS, {}).any()
