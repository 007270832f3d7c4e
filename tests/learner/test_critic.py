"""The critic of PPO: its loss by hand, its steps against plain torch, its checkpoints."""

import random

import numpy as np
import pytest
import torch

from ouroboros.stages.learner.critic import Critic, explained_variance, value_loss
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.snapshot import written
from tests import objectives
from tests.configs import TINY, overridden
from tests.learner.plain import PlainTorch

SETTINGS = ("trainer.critic.optimizer.weight_decay=0.1", "trainer.grad_clip=0.5")


def test_a_value_that_moved_too_far_is_held_near_the_old_one():
    """c = 0.5, old 0. V = 0.4, R = 1: 0.36 / 2. V = 2, R = 1: plain 1, near 0.5 gives 0.25: 1 / 2. V = 2, R = 3: near
    0.5 gives 6.25, more than 1: 6.25 / 2, clipped, and without gradient."""
    values = torch.tensor([0.4, 2.0, 2.0], dtype=torch.float64, requires_grad=True)
    loss, clipped = value_loss(values, torch.zeros(3), torch.tensor([1.0, 1.0, 3.0]), 0.5)
    assert loss.tolist() == pytest.approx([0.18, 0.5, 3.125])
    assert clipped.tolist() == [0.0, 0.0, 1.0]
    loss.sum().backward()
    assert values.grad.tolist() == pytest.approx([-0.6, 1.0, 0.0])


def test_values_within_the_range_are_never_clipped():
    """old + (V - old) is not V: of -0.3 and 0.1 it is 7.5e-9 less in float32, and so farther from R = 0.11."""
    old, values, returns = torch.tensor([-0.3, 0.5]), torch.tensor([0.1, 0.5]), torch.tensor([0.11, 0.0])
    assert ((old + (values - old) - returns) ** 2 > (values - returns) ** 2).tolist() == [True, False]
    loss, clipped = value_loss(values, old, returns, 0.5)
    assert clipped.tolist() == [0.0, 0.0]
    assert loss.tolist() == (0.5 * (values - returns) ** 2).tolist()
    source = torch.Generator().manual_seed(1)
    old, values, returns = torch.randn((3, 10_000), generator=source)
    assert value_loss(values, old, returns, 10.0)[1].sum() == 0.0
    assert value_loss(values, old, returns, 0.25)[1].sum() > 1000


@pytest.mark.parametrize("seed", range(3))
def test_the_value_loss_has_the_gradient_of_its_objective(seed):
    """Central differences of tests/objectives.py; c = 0.5, some values within it, some beyond, some held."""
    source = random.Random(seed)
    old, wanted = ([source.gauss(0, 1) for _ in range(20)] for _ in range(2))
    held = [x + source.choice((-1, 1)) * source.choice((0.2, 0.9)) for x in old]
    tokens = list(zip(old, wanted, strict=True))
    met = {objectives.value_loss(v, *t, 0.5)[1] for v, t in zip(held, tokens, strict=True)}
    assert met == {"near", "far", "clipped"}

    def total(values):
        return sum(objectives.value_loss(v, *t, 0.5)[0] for v, t in zip(values, tokens, strict=True))

    values = torch.tensor(held, dtype=torch.float64, requires_grad=True)
    loss, _ = value_loss(values, torch.tensor(old, dtype=torch.float64), torch.tensor(wanted, dtype=torch.float64), 0.5)
    (found,) = torch.autograd.grad(loss.sum(), values)
    assert loss.sum().item() == pytest.approx(total(held))
    assert found.tolist() == pytest.approx(objectives.differences(total, held), rel=1e-6, abs=1e-8)


def test_explained_variance():
    """Returns 1, 3: variance 1. Values 1, 2 leave 0, 1: variance 1/4. Equal returns have none to explain."""
    assert explained_variance(np.array([1.0, 2.0]), np.array([1.0, 3.0])) == 0.75
    assert explained_variance(np.array([5.0, 5.0]), np.array([1.0, 3.0])) == 0.0
    assert explained_variance(np.array([1.0, 2.0]), np.array([4.0, 4.0])) is None


@pytest.fixture(scope="module")
def critic(tiny_model, process):
    return Critic(tiny_model, overridden(*TINY, *SETTINGS), process)


def rows():
    """Five rows whose every third token is the environment's; returns 1 at action tokens of even rows, else 0."""
    source, made = torch.Generator().manual_seed(1), []
    for i, (p, r) in enumerate(((5, 9), (3, 4), (20, 16), (2, 1), (7, 7))):
        mask = [int(k % 3 != 1) for k in range(r)]
        columns = {"returns": [float(m and i % 2 == 0) for m in mask], "values": [0.0] * r}
        made.append(Row(f"r{i}", torch.randint(3, 99, (p + r,), generator=source).tolist(), p, mask, columns))
    return made


class Plain(PlainTorch):
    def __init__(self, path):
        self.head = torch.nn.Linear(64, 1)
        super().__init__(path, self.head)

    def values(self, row):
        states = self.hidden(row.tokens)[row.prompt_length - 1 : -1]
        return self.head(states)[torch.tensor(row.mask, dtype=torch.bool), 0]

    def loss(self, some):
        found = torch.cat([self.values(row) for row in some])
        wanted = torch.cat([torch.from_numpy(row.of_actions("returns")) for row in some])
        return 0.5 * ((found - wanted) ** 2).mean()


def with_values(critic, some):
    for row, values in zip(some, critic.values(some), strict=True):
        row.columns["values"] = row.spread(values)
    return some


def test_its_steps_are_those_of_plain_torch_and_come_back_from_a_checkpoint(critic, tiny_model, tmp_path):
    assert all(not values.any() for values in critic.values(rows()))  # the head begins at zero
    plain, found = Plain(tiny_model), []
    for budget in (4096, 36, 40):
        critic.budget.tokens = budget
        found.append(critic.step(with_values(critic, rows()), 1e-3))
        loss, norm = plain.step(rows())
        assert found[-1].vf_loss == pytest.approx(loss, abs=1e-5)
        assert found[-1].critic_grad_norm == pytest.approx(norm, rel=1e-3)
    assert found[0].vf_explained_variance == 0.0
    assert found[-1].vf_loss < found[0].vf_loss
    assert found[-1].vf_clipfrac == 0.0
    assert found[-1].critic_lr == 1e-3
    values = critic.values(rows())
    for row, of_row in zip(rows(), values, strict=True):
        torch.testing.assert_close(torch.from_numpy(of_row), plain.values(row).detach(), atol=1e-4, rtol=0)
    written(critic.save(tmp_path))
    after = [critic.step(with_values(critic, rows()), 1e-3) for _ in range(2)]
    critic.load(tmp_path)
    assert all((a == b).all() for a, b in zip(values, critic.values(rows()), strict=True))
    assert [critic.step(with_values(critic, rows()), 1e-3) for _ in range(2)] == after
