"""KL estimates of single tokens by hand, and in the mean against the exact divergence of a small vocabulary."""

import math

import numpy as np
import pytest
import torch

from ouroboros.operators.kl import KL_ESTIMATORS, adaptive_coefficient, penalise
from ouroboros.pipeline.settings.arguments.users import needed_columns

LN2 = math.log(2)


def estimate(name, logprobs, ref, old=None):
    columns = {"logprobs": logprobs, "ref_logprobs": ref, "old_logprobs": logprobs if old is None else old}
    function = KL_ESTIMATORS[name]
    return function(**{column: columns[column] for column in needed_columns(function)})


@pytest.mark.parametrize(("name", "likelier", "unlikelier"), [
    ("none", 0, 0), ("k1", LN2, -LN2), ("k2", LN2**2 / 2, LN2**2 / 2), ("abs", LN2, LN2),
    ("k3", 0.5 - 1 + LN2, 2 - 1 - LN2), ("low_var_kl", 0.5 - 1 + LN2, 2 - 1 - LN2),
    ("corrected_k3", 0.5 - 1 + LN2, 2 - 1 - LN2)])
def test_a_token_twice_and_half_as_likely_as_in_the_reference(name, likelier, unlikelier):
    ref = torch.tensor([-2.0, -2.0], dtype=torch.float64)
    found = estimate(name, ref + torch.tensor([LN2, -LN2], dtype=torch.float64), ref)
    assert found.tolist() == pytest.approx([likelier, unlikelier])


@pytest.mark.parametrize("name", KL_ESTIMATORS)
@pytest.mark.parametrize("gap", [1000.0, -1000.0])
def test_a_token_that_one_of_them_finds_impossible_does_not_overflow(name, gap):
    new = torch.tensor([-1.0 - max(gap, 0.0)], requires_grad=True)
    kl = estimate(name, new, torch.tensor([-1.0 + min(gap, 0.0)]), torch.tensor([-1.0])) + 0 * new
    kl.sum().backward()
    assert torch.isfinite(kl).all()
    assert torch.isfinite(new.grad).all()


def exact(q, p):
    return (q * (q / p).log()).sum()


def test_means_and_gradients_over_a_vocabulary_are_those_that_the_page_says():
    """k1 and k3 mean KL(policy || reference), corrected_k3 also on tokens of another policy. As losses: k1 nothing,
    k2 its gradient, k3 that of the other direction, abs that of sum |p - q|, corrected_k3 its own.
    """
    logits = torch.tensor([0.3, -0.4, 1.1], dtype=torch.float64, requires_grad=True)
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q, behaviour = torch.softmax(logits, 0), torch.tensor([0.35, 0.25, 0.4], dtype=torch.float64)
    for name in ("k1", "k3"):
        assert (q * estimate(name, q.log(), p.log())).sum().item() == pytest.approx(exact(q, p).item())
    corrected = (behaviour * estimate("corrected_k3", q.log(), p.log(), behaviour.log())).sum()
    assert corrected.item() == pytest.approx(exact(q, p).item())

    def gradient(value):
        return torch.autograd.grad(value, logits, retain_graph=True)[0]

    def of_loss(name):
        return gradient((q.detach() * estimate(name, q.log(), p.log())).sum())

    torch.testing.assert_close(of_loss("k1"), torch.zeros_like(p), atol=1e-12, rtol=0)
    torch.testing.assert_close(of_loss("k2"), gradient(exact(q, p)))
    torch.testing.assert_close(of_loss("k3"), gradient(exact(p, q)))
    torch.testing.assert_close(of_loss("abs"), gradient((p - q).abs().sum()))
    torch.testing.assert_close(gradient(corrected), gradient(exact(q, p)))


@pytest.mark.parametrize(("kl", "horizon", "rows", "factor"), [
    (0.1, 1000, 100, 1), (0.11, 1000, 100, 1.01), (9.0, 1000, 100, 1.02), (0.0, 1000, 100, 0.98),
    (0.09, 1000, 100, 0.99), (0.11, 200, 50, 1.025), (0.11, 200, 25, 1.0125)])
def test_the_coefficient_follows_the_target_by_at_most_a_fifth_of_batch_over_horizon(kl, horizon, rows, factor):
    assert adaptive_coefficient(0.2, kl, 0.1, horizon, rows) == pytest.approx(0.2 * factor)


def test_a_penalised_reward_in_tokens_and_in_sum():
    """k1 of 0.5 and 1.0 at the action tokens, coefficient 0.1: -0.05 and 2 - 0.1; nothing where nan stands."""
    given = (np.array([-1.0, np.nan, -1.0]), np.array([-1.5, np.nan, -2.0]), np.array([1, 0, 1]), "k1", 0.1)
    rewards, kl = penalise(2.0, *given)
    assert rewards.tolist() == pytest.approx([-0.05, 0, 1.9])
    assert rewards.sum() == pytest.approx(2.0 - 0.1 * 1.5)
    assert kl == pytest.approx(0.75)
    rewards, _ = penalise(2.0, *given, token_rewards=np.array([0.5, np.nan, 1.0]))
    assert rewards.tolist() == pytest.approx([0.45, 0, 0.9])


def test_the_reward_stands_on_the_last_action_token():
    same = np.array([-1.0, -1.0, -1.0])
    assert penalise(2.0, same, same, np.array([1, 1, 0]), "k2", 0.1)[0].tolist() == [0, 2, 0]
    assert penalise(2.0, same, same, np.array([0, 0, 0]), "k2", 0.1) == (pytest.approx(np.zeros(3)), 0.0)


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_every_estimate_serves_as_a_penalty(name):
    rewards, kl = penalise(1.0, np.array([-1.0]), np.array([-2.0]), np.array([1]), name, 0.5)
    assert rewards[0] == pytest.approx(1 - 0.5 * kl)
