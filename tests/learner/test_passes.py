"""Several optimizer steps over a train batch: their order by hand, and on a model beside a loop as veRL has it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ouroboros.pipeline.settings.config import Config
from ouroboros.stages.learner.actor import Actor, Result
from ouroboros.stages.learner.critic import ValueResult
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.objective import Objective
from ouroboros.stages.learner.steps import critic_steps, parts_of, policy_steps
from tests.configs import TINY, overridden
from tests.learner.test_actor import Plain

SETTINGS = ("algorithm.algorithm_type=grpo", "trainer.grad_clip=0.5", "algorithm.optimizer.weight_decay=0.1",
            "trainer.ppo_epochs=2", "trainer.ppo_mini_batch_size=2", "algorithm.policy_loss_fn_args={}")


def trainer(epochs=1, size=None, shuffle=False):
    return SimpleNamespace(ppo_epochs=epochs, ppo_mini_batch_size=size, shuffle_mini_batches=shuffle)


def rows(lengths, **columns):
    return [Row(f"r{i}", [5] * (2 + n), 2, [1] * n, dict(columns)) for i, n in enumerate(lengths)]


def test_a_pass_is_cut_in_order_with_a_smaller_last_part_and_none_without_a_token():
    made = parts_of(rows([1, 1, 1, 1, 1]), trainer(2, 2), seed=1, step=1)
    assert [[part.tolist() for part in one] for one in made] == [[[0, 1], [2, 3], [4]]] * 2
    assert [[part.tolist() for part in one] for one in parts_of(rows([1, 1]), trainer(2), 1, 1)] == [[[0, 1]]] * 2
    assert [part.tolist() for part in parts_of(rows([0, 0, 1]), trainer(1, 2), 1, 1)[0]] == [[2]]


def test_shuffled_every_pass_has_an_order_of_its_own_that_comes_again():
    given = rows([1] * 20)
    orders = [np.concatenate(one).tolist() for one in parts_of(given, trainer(3, 4, True), seed=1, step=7)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert [np.concatenate(one).tolist() for one in parts_of(given, trainer(3, 4, True), 1, 7)] == orders
    assert [np.concatenate(one).tolist() for one in parts_of(given, trainer(3, 4, True), 1, 8)] != orders


def test_what_is_measured_is_of_all_steps_and_of_each_pass():
    """Parts of 1 and 3 tokens, clip fractions 0 and 0.4, then 0.4 and 0.8: 0.3 and 0.7, of all 0.5."""
    given, calls = rows([1, 3]), []

    def step(some):
        calls.append([row.id for row in some])
        number = len(calls)
        clip = [0.0, 0.4, 0.4, 0.8][number - 1]
        return Result(number, 2.0 * number, 0.1, None, {"clip_fraction": clip, "entropy": 1.0}, 3,
                      [np.full(len(row.mask), -number, np.float32) for row in some], 64, 1, "packed",
                      [np.full(len(row.mask), number / 2, np.float32) for row in some])

    found = policy_steps(given, parts_of(given, trainer(2, 1), 1, 1), step)
    assert calls == [["r0"], ["r1"], ["r0"], ["r1"]]
    assert (found.loss, found.grad_norm, found.tokens, found.compiled_graphs) == (2.5, 5.0, 12, 4)
    assert found.statistics == pytest.approx({"clip_fraction": 0.5, "entropy": 1.0, "clip_fraction_1": 0.3,
                                              "clip_fraction_2": 0.7})
    assert [values.tolist() for values in found.logprobs] == [[-1], [-2] * 3]
    assert [values.tolist() for values in found.entropies] == [[0.5], [1.0] * 3]


def test_a_single_step_is_left_as_it_is():
    result = Result(0.1, 0.2, 0.3, None, {"entropy": 0.1 + 0.2}, 3, [np.zeros(1)])
    assert policy_steps(rows([1]), parts_of(rows([1]), trainer(), 1, 1), lambda some: result) is result
    value = ValueResult(0.1, 0.0, None, 0.2, 0.3)
    assert critic_steps(rows([1], values=0.0, returns=1.0), [[range(1)]], lambda some: value) is value


def batch():
    """Six rows of the tiny model, whose old log-probs differ enough for some tokens to be clipped."""
    source = torch.Generator().manual_seed(1)
    made = []
    for i, n in enumerate((3, 9, 1, 6, 4, 8)):
        tokens = torch.randint(3, 99, (4 + n,), generator=source).tolist()
        old = (-4.5 + 0.3 * torch.randn(n, generator=source)).tolist()
        made.append(Row(f"r{i}", tokens, 4, [1] * n, {"old_logprobs": old, "rollout_logprobs": old,
                                                      "advantages": (-1.0) ** i * (1 + i / 4)}))
    return made


class Loop(Plain):
    """veRL's update of an actor: for each pass, for each mini-batch, the mean over its tokens of PPO's loss."""

    def update(self, given, config: Config):
        for _ in range(config.trainer.ppo_epochs):
            for begin in range(0, len(given), config.trainer.ppo_mini_batch_size):
                self.mini(given[begin : begin + config.trainer.ppo_mini_batch_size])

    def mini(self, some):
        losses = []
        for row in some:
            ratio = (self.logprobs(row) - torch.tensor(row.columns["old_logprobs"])).exp()
            a = row.columns["advantages"]
            clipped = torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.2))
            losses.append(torch.minimum(clipped, torch.tensor(-3.0 * a)) if a < 0 else clipped)
        self.optimizer.zero_grad()
        torch.cat(losses).mean().backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()


def test_weights_are_those_of_a_plain_loop(tiny_model, process):
    config = overridden(*TINY, *SETTINGS)
    actor, objective, plain = Actor(tiny_model, config, process), Objective(config), Loop(tiny_model)
    given = batch()
    found = policy_steps(given, parts_of(given, config.trainer, 1, 1),
                         lambda some: actor.step(some, objective, 1e-3, 1))
    plain.update(given, config)
    state = plain.model.state_dict()
    assert all(torch.allclose(value, state[name], atol=3e-5) for name, value in actor.full_state().items())
    first, second = (found.statistics[f"clip_fraction_{number}"] for number in (1, 2))
    assert 0 < first != second
    assert found.statistics["clip_fraction"] == pytest.approx((first + second) / 2)  # each pass has the same tokens
    assert {"kl_1", "kl_2"} <= found.statistics.keys()


def test_the_proximal_policy_is_that_before_the_first_step():
    config = overridden(*TINY, *SETTINGS, "algorithm.policy_loss_fn=decoupled_ppo")
    assert "prox_logprobs" in Objective(config).row_columns
    assert "prox_logprobs" not in Objective(overridden(*TINY, *SETTINGS)).row_columns
    once = overridden(*TINY, "algorithm.algorithm_type=decoupled_ppo")
    assert "prox_logprobs" not in Objective(once).row_columns


def test_a_reference_follows_the_policy_and_comes_back_from_a_checkpoint(tiny_model, process, tmp_path):
    """Half of the way after one step: each weight is the mean of both."""
    config = overridden(*TINY, *SETTINGS, "trainer.reference_update.interval=1")
    actor, given = Actor(tiny_model, config, process, keep_initial=True), batch()
    before = {name: value.clone() for name, value in actor.initial.items()}
    actor.step(given, Objective(config), 1e-2, 1)
    actor.follow(0.5)
    for name, parameter in actor._trainable():
        assert torch.allclose(actor.initial[name], (before[name] + parameter.detach()) / 2, atol=1e-6)
    scored = np.concatenate(actor.reference_logprobs(given))
    assert np.abs(scored - np.concatenate(actor.score_rows(given))).max() > 1e-3
    (part,) = actor.reference_part(tmp_path)
    part.write(part.state)
    actor.follow(1.0)
    actor.load_reference(tmp_path)
    assert np.array_equal(np.concatenate(actor.reference_logprobs(given)), scored)
