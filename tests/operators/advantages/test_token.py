"""Advantages of single tokens, by hand; every one of them sees action tokens only."""

import math

import numpy as np
import pytest
import torch

from ouroboros.operators.advantages import token
from ouroboros.operators.advantages.action_tokens import whiten
from ouroboros.pipeline.store.errors import DataError
from tests.factories import advantage_batch, called
from tests.golden.messages import refuses

jsd, on_policy_distill, ppo, reinforceplusplus, remax = map(called, (
    token.Jsd, token.OnPolicyDistill, token.Ppo, token.Reinforceplusplus, token.Remax))

HALF = 1 / math.sqrt(2)


def lists(made, name="advantage"):
    return made[name].to_pylist()


def test_gae_skips_a_token_of_the_environment():
    """gamma = lam = 1/2, V = 1/2 then 1/4, reward 1 at the end.

    delta = (1/2 * 1/4 - 1/2, 1 - 1/4) = (-3/8, 3/4); G = (-3/8 + 1/4 * 3/4, 3/4) = (-3/16, 3/4); returns G + V.
    Two values whiten to +-1/sqrt 2. The 9 between them is the value of a token that nobody chose.
    """
    batch = advantage_batch(action_mask=[[1, 0, 1]], values=[[0.5, 9.0, 0.25]], reward=[1.0])
    made = ppo(batch, gamma=0.5, lam=0.5)
    assert lists(made, "returns")[0] == pytest.approx([5 / 16, 0, 1])
    assert lists(made)[0] == pytest.approx([-HALF, 0, HALF], abs=1e-6)


@pytest.mark.parametrize("elsewhere", [math.nan, 1e30])
def test_gae_reads_nothing_where_there_is_no_action_and_padding_changes_nothing(elsewhere):
    """Two rows, one with padding behind; both must come out as without it."""
    plain = ppo(advantage_batch(action_mask=[[1, 1], [1]], values=[[0.1, 0.2], [0.3]], reward=[1.0, 0.0]), lam=0.9)
    padded = ppo(advantage_batch(action_mask=[[1, 1, 0], [0, 1]], values=[[0.1, 0.2, elsewhere], [elsewhere, 0.3]],
                                 reward=[1.0, 0.0]), lam=0.9)
    for name in ("advantage", "returns"):
        (a, b, _), (_, c) = lists(padded, name)
        assert [[a, b], [c]] == lists(plain, name)


def test_whitening_of_too_little_is_zero_and_of_a_tiny_spread_is_damped_within_the_root():
    assert whiten(np.array([])).tolist() == []
    assert whiten(np.array([5.0])).tolist() == [0.0]
    assert whiten(np.array([5.0, 5.0])).tolist() == [0.0, 0.0]
    # 0, 1 and 2 ten-thousandths: variance 1e-8, and 1e-8 more: 1e-4 / sqrt(2e-8).
    assert whiten(np.array([0.0, 1e-4, 2e-4])) == pytest.approx([-HALF, 0, HALF])


def test_a_row_without_an_action_has_zeros_and_disturbs_nobody():
    made = reinforceplusplus(advantage_batch(action_mask=[[0, 0], [1], [1], []], reward=[7.0, 1.0, -1.0, 5.0]))
    assert lists(made)[0] == [0, 0]
    assert lists(made)[3] == []
    assert np.concatenate(lists(made)[1:3]) == pytest.approx([HALF, -HALF], abs=1e-6)


def test_reinforceplusplus_discounts_by_action_tokens_and_whitens_over_the_batch():
    """gamma 1/2: returns 1/2, 1 and -1. Mean 1/6, squares 1/9 + 25/36 + 49/36 = 13/6, std sqrt(13/12)."""
    made = reinforceplusplus(advantage_batch(action_mask=[[1, 0, 1], [1]], reward=[1.0, -1.0]), gamma=0.5)
    assert lists(made, "returns") == [[0.5, 0, 1], [-1]]
    std = math.sqrt(13 / 12)
    assert lists(made)[0] == pytest.approx([1 / 3 / std, 0, 5 / 6 / std], abs=1e-6)


def test_rewards_of_single_tokens_replace_that_of_the_response_where_there_are_any():
    """Row 0: 1/4 then 3/4, so 1 and 3/4 to come. Row 1 has none of its own: 2 on its last action token."""
    batch = advantage_batch(action_mask=[[1, 0, 1], [1, 1, 0]], reward=[9.0, 2.0], baseline_reward=[0.5, 1.5],
                            token_rewards=[[0.25, math.nan, 0.75], None])
    made = remax(batch)
    assert lists(made, "returns") == [[1.0, 0, 0.75], [2.0, 2.0, 0]]
    assert lists(made) == [[0.5, 0, 0.25], [0.5, 0.5, 0]]


def teacher(student, teacher, mask=None):
    mask = mask or [[1] * len(row) for row in student]
    return advantage_batch(action_mask=mask, old_logprobs=student, teacher_logprobs=teacher)


def test_distillation_follows_the_teacher_and_is_jsd_at_the_students_end():
    made = on_policy_distill(teacher([[-2.0, -1.0, -1.0]], [[-1.0, 5.0, -1.5]], [[1, 0, 1]]), kl_coef=2.0)
    assert lists(made) == [[2.0, 0, -1.0]]
    batch = teacher([[-2.0, -1.0, -1.0]], [[-1.0, 5.0, -1.5]], [[1, 0, 1]])
    assert lists(jsd(batch, lambda_coef=1.0, kl_coef=2.0)) == lists(on_policy_distill(batch, kl_coef=2.0))


def test_jsd_has_the_sign_of_the_teachers_opinion():
    """Student 0.2. Teacher 0.1: m = 0.15, A = ln(0.15 / 0.2) / 2 < 0; teacher 0.6: m = 0.4, A = ln 2 / 2; equal: 0."""
    student = [[math.log(0.2)] * 3]
    made = jsd(teacher(student, [[math.log(0.1), math.log(0.6), math.log(0.2)]]))
    assert lists(made)[0] == pytest.approx([math.log(0.75) / 2, math.log(2) / 2, 0], abs=1e-7)


def test_jsd_at_its_ends_is_the_kl_that_the_divergence_tends_to():
    """Teacher / student 3: 3 - 1 for KL(teacher || student), ln 3 for KL(student || teacher); D / b and D / (1 - b)."""
    batch = teacher([[math.log(0.2)]], [[math.log(0.6)]])
    near = 1e-6
    for b, of_kl in ((0, 2.0), (1, math.log(3))):
        assert lists(jsd(batch, lambda_coef=b))[0] == pytest.approx([of_kl], abs=1e-6)
        assert lists(jsd(batch, lambda_coef=abs(b - near)))[0][0] / near == pytest.approx(of_kl, rel=1e-5)
    far = teacher([[-90.0]], [[-0.5]])
    assert lists(jsd(far, lambda_coef=0))[0] == pytest.approx([math.expm1(20)])


@pytest.mark.parametrize("b", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_jsd_is_the_policy_gradient_of_the_divergence(b):
    """Exact over a vocabulary of three: sum of q A grad log q equals minus the gradient of D by the logits."""
    logits = torch.tensor([0.3, -0.4, 1.1], dtype=torch.float64, requires_grad=True)
    p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    q = torch.softmax(logits, 0)
    m = b * p + (1 - b) * q
    divergence = {0.0: (p * (p / q).log()).sum(), 1.0: (q * (q / p).log()).sum()}.get(
        b, b * (p * (p / m).log()).sum() + (1 - b) * (q * (q / m).log()).sum())
    (exact,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    made = jsd(advantage_batch(action_mask=[[1] * 3], old_logprobs=[q.log().tolist()],
                               teacher_logprobs=[p.log().tolist()]), lambda_coef=b)
    advantage = torch.tensor(lists(made)[0], dtype=torch.float64)
    (policy_gradient,) = torch.autograd.grad((q.detach() * advantage * q.log()).sum(), logits)
    torch.testing.assert_close(policy_gradient, -exact, atol=1e-6, rtol=1e-5)  # log-probs came as float32


def test_a_list_of_the_wrong_length_or_with_a_hole_is_named():
    with refuses(DataError, "'values'", "1 entries", "e1", "2 tokens"):
        ppo(advantage_batch(action_mask=[[1], [1, 1]], values=[[0.0], [0.0]], reward=[1.0, 1.0]))
    with refuses(DataError, "'values'", "e1", "0 more"):
        ppo(advantage_batch(action_mask=[[1], [0, 1]], values=[[0.0], [0.0, None]], reward=[1.0, 1.0]))
