"""Mixed batches by hand: two rollouts and one expert row; the shares are mu, whatever the counts."""

import math

import pytest
import torch

from ouroboros.operators.aggregation import token_weights_by_kind
from ouroboros.operators.losses.mixture import Mix, chord_mu
from tests.factories import called

mix = called(Mix)

ROWS = torch.tensor([0, 1, 1, 2, 2, 2])
EXPERT = ROWS == 2
LOGPROBS = [-1.0, -1.0, -1.0, -0.5, -1.5, -4.0]
WEIGHTS = torch.from_numpy(token_weights_by_kind("token-mean", [1, 2, 3], [False, False, True]))[ROWS]


def call(function, old=-1.0, **given):
    new = torch.tensor(LOGPROBS, dtype=torch.float64)
    advantages = torch.tensor([1.0, -2.0, -2.0, math.nan, math.nan, math.nan], dtype=torch.float64)
    old = torch.where(EXPERT, torch.nan, torch.full_like(new, old))
    loss, statistics = function(new, old, advantages, ROWS, EXPERT, **given)
    return loss, {name: (value * WEIGHTS).sum().item() for name, value in statistics.items()}


def test_mix_is_mu_of_imitation_and_the_rest_of_ppo():
    """PPO at ratio 1: -1, 2, 2, mean 1. Imitation 0.5, 1.5, 4, mean 2. 0.75 * 1 + 0.25 * 2 = 1.25."""
    loss, statistics = call(mix, mu=0.25)
    assert loss.tolist() == pytest.approx([-0.75, 1.5, 1.5, 0.125, 0.375, 1.0])
    assert (loss * WEIGHTS).sum().item() == pytest.approx(1.25)
    assert statistics["sft_loss"] == pytest.approx(2.0)
    assert statistics["mu"] == pytest.approx(0.25)
    assert statistics["kl"] == 0  # of rollouts alone: nan of the expert rows is not read


def test_mix_clips_rollouts():
    """Old log-prob -2: ratio e is held at 1.2 where A > 0 and at the dual clip, 2.5 * 2, where A = -2."""
    loss, statistics = call(mix, old=-2.0, mu=0.0, clip_ratio_c=2.5)
    assert loss.tolist() == pytest.approx([-1.2, 5.0, 5.0, 0, 0, 0])
    assert statistics["clip_fraction"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(("step", "mu"), [(0, 0.0), (1, 0.4), (2, 0.8), (3, 0.2 + 0.6 * (1 + math.sqrt(0.5)) / 2),
                                          (4, 0.5), (6, 0.2), (100, 0.2)])
def test_the_schedule_of_mu(step, mu):
    """Up in 2 steps to 0.8, down in 4 by a half cosine to 0.2."""
    assert chord_mu(step, 2, 4, 0.8, 0.2) == pytest.approx(mu)


def test_without_warmup_and_decay_mu_is_the_valley():
    assert chord_mu(1, 0, 0, 0.8, 0.2) == 0.2


def test_a_micro_batch_of_one_kind_has_no_other_term():
    new, old, advantages = (torch.tensor([x], dtype=torch.float64) for x in (-1.0, -1.0, 2.0))
    row = torch.tensor([0])
    assert mix(new, old, advantages, row, torch.tensor([False]))[0].tolist() == pytest.approx([-0.9 * 2])
    assert mix(new, old, advantages, row, torch.tensor([True]))[0].tolist() == pytest.approx([0.1])
