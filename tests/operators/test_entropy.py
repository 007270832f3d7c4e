"""The entropy bonus by hand."""

import torch

from ouroboros.operators.entropy import ENTROPY_LOSSES, default, mix, none
from ouroboros.pipeline.settings.arguments.users import needed_columns

ENTROPY = torch.tensor([0.5, 2.0])


def test_the_bonus_is_a_negative_loss():
    assert default(ENTROPY, entropy_coef=0.5).tolist() == [-0.25, -1.0]
    assert default(ENTROPY).tolist() == [0, 0]


def test_expert_rows_have_no_bonus_and_no_gradient():
    assert mix(ENTROPY, torch.tensor([True, False]), entropy_coef=0.5).tolist() == [0, -1.0]
    entropy = ENTROPY.clone().requires_grad_()
    mix(entropy, torch.tensor([True, False]), entropy_coef=0.5).sum().backward()
    assert entropy.grad.tolist() == [0, -0.5]


def test_none_does_not_ask_for_the_entropy():
    assert none(torch.tensor([-1.0, -2.0])).tolist() == [0, 0]
    assert {name: needed_columns(f) for name, f in ENTROPY_LOSSES.items()} == {
        "default": ("entropy",), "mix": ("entropy", "is_expert"), "none": ("logprobs",)}
