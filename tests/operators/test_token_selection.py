"""Tokens chosen over a whole batch, by hand."""

import math

import pytest
import torch

from ouroboros.operators.losses.covariance import ClipCov, KlCov
from ouroboros.operators.selection import of_high_entropy

# means of log-probs and advantages are -2 and 0: covariances 2, -1, -1, 0
LOGPROBS = torch.tensor([-1.0, -1.0, -3.0, -3.0], dtype=torch.float64)
ADVANTAGES = torch.tensor([2.0, -1.0, 1.0, -2.0], dtype=torch.float64)


def test_kl_cov_holds_the_tokens_of_the_largest_covariance():
    """Covariances 2, -1, -1, 2. Half of the tokens: the first and the last, whose log ratios are ln 2 and 0."""
    assert KlCov(kl_cov_ratio=0.5).choose(LOGPROBS, ADVANTAGES).tolist() == [True, False, False, True]
    assert KlCov().choose(LOGPROBS, ADVANTAGES).sum() == 1
    old = LOGPROBS - torch.tensor([math.log(2), 0, 0, 0])
    loss, statistics = KlCov(kl_cov_ratio=0.5, ppo_kl_coef=0.1)(LOGPROBS, old, ADVANTAGES)
    assert loss.tolist() == pytest.approx([-4 + 0.1 * math.log(2), 1, -1, 2])
    assert statistics["covariance_chosen"].tolist() == [1, 0, 0, 1]


def test_clip_cov_leaves_out_what_the_clip_does_not():
    """The first token is clipped at 1.2, so of covariances from 1 to 5 the last alone may be left out."""
    old = LOGPROBS - torch.tensor([math.log(2), 0, 0, 0])
    loss, statistics = ClipCov(clip_cov_ratio=1.0)(LOGPROBS, old, ADVANTAGES)
    assert loss.tolist() == pytest.approx([-2.4, 1, -1, 0])
    assert (statistics["clip_fraction"].tolist(), statistics["covariance_chosen"].tolist()) == (
        [1, 0, 0, 0], [0, 0, 0, 1])
    assert ClipCov(clip_cov_lb=2.5)(LOGPROBS, old, ADVANTAGES)[0].tolist() == pytest.approx([-2.4, 1, -1, 2])


def test_clip_cov_draws_a_share_by_the_tokens_themselves():
    """900 candidates of 1000 tokens, 0.05 of 1000 are drawn; of the batch in another order the same."""
    source = torch.Generator().manual_seed(0)
    logprobs, advantages = -3 * torch.rand(1000, generator=source), torch.randn(1000, generator=source)
    drawn = ClipCov(clip_cov_ratio=0.05, clip_cov_lb=-0.5, clip_cov_ub=9.0).choose
    first = drawn(logprobs, logprobs, advantages)
    other = torch.randperm(1000, generator=source)
    again = drawn(logprobs[other], logprobs[other], advantages[other])
    assert first.sum() == 50
    assert (again == first[other]).float().mean() > 0.99  # means are sums in another order
    assert 300 < torch.nonzero(first).float().mean() < 700


def test_tokens_of_high_entropy():
    """Quantile 0.6 of 1 2 3 4 5 is 3.4; of equal entropies all teach."""
    assert of_high_entropy(torch.tensor([1.0, 5, 2, 4, 3]), 0.4).tolist() == [False, True, False, True, False]
    assert of_high_entropy(torch.ones(3), 0.2).all()
    assert of_high_entropy(torch.arange(5.0), 1.0).all()
