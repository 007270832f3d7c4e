"""The loss of a reward model by hand."""

import math

import pytest
import torch

from ouroboros.operators.losses.reward import RewardModel
from tests.factories import called

reward_model = called(RewardModel)


def losses(*scores, margins=None, **given):
    """(loss of each pair, gradient of their sum by the scores, accuracy of each pair); scores: chosen, rejected, ..."""
    values = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    wanted = torch.tensor(margins or [0.0] * len(scores), dtype=torch.float64)
    loss, statistics = reward_model(values, wanted, torch.arange(len(scores)), **given)
    assert loss[0::2].tolist() == loss[1::2].tolist()
    (gradient,) = torch.autograd.grad(loss[0::2].sum(), values)
    return loss[0::2].tolist(), gradient.tolist(), statistics["accuracy"][0::2].tolist()


@pytest.mark.parametrize(("scores", "margins", "expected", "slopes", "right"), [
    # 1.5 over 0.5: log(1 + e^-1), pushed by 1 - sigmoid(1); 0 under 2: log(1 + e^2)
    ((1.5, 0.5, 0.0, 2.0), None, [0.313262, 2.126928], [-0.268941, 0.268941, -0.880797, 0.880797], [1.0, 0.0]),
    ((0.7, 0.7), None, [math.log(2)], [-0.5, 0.5], [0.5]),  # equal scores are half right
    # 0.5 over -0.5 with margin 1 is as good as equal; margins are of pairs, said in both rows
    ((0.5, -0.5), [1.0, 1.0], [math.log(2)], [-0.5, 0.5], [1.0])])
def test_scores_are_to_differ_by_the_margin(scores, margins, expected, slopes, right):
    loss, gradient, found = losses(*scores, margins=margins)
    assert (loss, gradient) == (pytest.approx(expected, abs=1e-6), pytest.approx(slopes, abs=1e-6))
    assert found == right


def test_centring_draws_the_sum_of_a_pair_to_zero():
    """0.01 (1.5 + 0.5)^2 = 0.04 more, pushed by 2 * 0.01 * 2 = 0.04 each; a pair around 0 costs nothing."""
    loss, gradient, _ = losses(1.5, 0.5, center_rewards_coefficient=0.01)
    assert loss == pytest.approx([0.313262 + 0.04], abs=1e-6)
    assert gradient == pytest.approx([-0.268941 + 0.04, 0.268941 + 0.04], abs=1e-6)
    assert losses(0.5, -0.5, center_rewards_coefficient=3.0)[0] == pytest.approx(losses(0.5, -0.5)[0])


def test_scores_far_apart_stay_finite():
    loss, gradient, _ = losses(-1e4, 1e4, 1e4, -1e4)
    assert loss == [2e4, 0.0]
    assert gradient == [-1.0, 1.0, 0.0, 0.0]
