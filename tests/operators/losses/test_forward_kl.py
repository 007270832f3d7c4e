"""The forward KL over a teacher's likeliest tokens by hand."""

import math

import pytest
import torch

from ouroboros.operators.losses.distillation import ForwardKlTopk
from tests.factories import called

forward_kl_topk = called(ForwardKlTopk)


def logs(*probabilities):
    return torch.tensor([probabilities], dtype=torch.float64).log()


def test_three_tokens_of_which_two_are_compared():
    """p 1/2, 1/4 and the rest 1/4; q 1/4, 1/4 and 1/2: 1/2 ln 2 + 0 + 1/4 ln 1/2 = 1/4 ln 2, pushed by q - p."""
    logits = logs(1 / 4, 1 / 4, 1 / 2).requires_grad_()
    loss, statistics = forward_kl_topk(logits.log_softmax(-1), logs(1 / 2, 1 / 4, 1 / 4), top_k=2)
    assert loss.tolist() == pytest.approx([math.log(2) / 4])
    assert statistics["teacher_top_probability"].tolist() == pytest.approx([0.75])
    loss.sum().backward()
    assert logits.grad[0].tolist() == pytest.approx([-0.25, 0.0, 0.25])


def test_what_cannot_occur_costs_nothing():
    """Of two events with all probability, and a rest without any, for both."""
    student, teacher = logs(0.5, 0.5, 1.0), logs(0.75, 0.25, 1.0)
    student[0, 2] = teacher[0, 2] = -1e30
    loss, _ = forward_kl_topk(student.requires_grad_(), teacher)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([0.75 * math.log(1.5) + 0.25 * math.log(0.5)])
    assert student.grad[0].tolist() == pytest.approx([-0.75, -0.25, 0.0])
