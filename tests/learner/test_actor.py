"""One rank of DeepSpeed on the CPU against plain torch."""

import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ouroboros.pipeline.store.checkpoints import copy_model_files
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.packing import pack
from ouroboros.stages.learner.engine.snapshot import written
from ouroboros.stages.learner.objective import Objective
from ouroboros.workflows.endpoint.merging import merged
from ouroboros.workflows.protocol.trajectory import Trajectory
from tests.configs import TINY, overridden
from tests.golden.messages import refuses
from tests.learner.plain import PlainTorch

SETTINGS = ("algorithm.algorithm_type=sft", "trainer.grad_clip=0.5", "algorithm.optimizer.weight_decay=0.1")


@pytest.fixture(scope="module")
def learner(tiny_model, process):
    return Actor(tiny_model, overridden(*TINY, *SETTINGS), process, keep_initial=True)


def rows():
    source = torch.Generator().manual_seed(1)
    sizes = ((5, 9), (3, 4), (20, 16), (2, 1), (7, 7))
    return [Row(f"r{i}", torch.randint(3, 99, (p + r,), generator=source).tolist(), p, [1] * r)
            for i, (p, r) in enumerate(sizes)]


@pytest.fixture(scope="module")
def loss():
    return Objective(overridden(*TINY, *SETTINGS))


class Plain(PlainTorch):
    def logprobs(self, row):
        scores = self.model(torch.tensor([row.tokens])).logits[0].log_softmax(-1)
        targets = torch.tensor(row.tokens[row.prompt_length :])
        return scores[row.prompt_length - 1 : -1].gather(-1, targets[:, None])[:, 0]

    def loss(self, some):
        return -torch.cat([self.logprobs(row) for row in some]).mean()


@pytest.fixture(scope="module")
def trained(learner, loss, tiny_model, tmp_path_factory):
    """Two steps of both, the second in many micro-batches; then a checkpoint."""
    plain = Plain(tiny_model)
    directory = tmp_path_factory.mktemp("checkpoint")
    first = learner.step(rows(), loss, 1e-3, 1), plain.step(rows())
    learner.budget.tokens = 36  # the longest row alone
    second = learner.step(rows(), loss, 1e-3, 1), plain.step(rows())
    learner.budget.tokens = 4096
    written(learner.zero.save(directory))
    return first, second, plain, directory


def test_a_step_is_that_of_plain_torch_however_it_is_cut(learner, trained):
    """Loss, gradient norm before clipping, and the weights after it."""
    for ours, (expected_loss, expected_norm) in trained[:2]:
        assert ours.loss == pytest.approx(expected_loss, abs=1e-5)
        assert ours.grad_norm == pytest.approx(expected_norm, rel=1e-4)
        assert ours.grad_norm > 0.5  # it was clipped
        assert ours.tokens == sum(len(row.tokens) for row in rows())
    state, plain = learner.full_state(), trained[2].model.state_dict()
    assert all(torch.allclose(value, plain[name], atol=2e-5) for name, value in state.items())


def test_log_probs_of_every_row_come_back_by_its_index(trained):
    (ours, _), _, _, _ = trained
    assert [len(values) for values in ours.logprobs] == [9, 4, 16, 1, 7]
    total = sum(values.sum() for values in ours.logprobs)
    assert -total / 37 == pytest.approx(ours.loss, abs=1e-5)
    assert 0 < ours.statistics["entropy"] <= math.log(99)


def test_a_probe_is_scored_at_temperature_1_and_leaves_the_trainer_as_it_was(learner, trained):
    tokens = rows()[2].tokens
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learner.zero.module, "temperature", 0.5)
        found = learner.score(tokens)
    assert learner.zero.module.training
    plain = trained[2].logprobs(Row("x", tokens, 1, [1] * 35)).tolist()
    assert found == pytest.approx(plain, abs=1e-4)


def test_exported_weights_are_read_by_transformers(learner, trained, tiny_model, tmp_path):
    copy_model_files(tiny_model, tmp_path / "model")
    learner.zero.load(trained[3])
    written(learner.save(tmp_path))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", local_files_only=True)
    state = learner.full_state()
    assert all(torch.equal(value, state[name]) for name, value in model.named_parameters())


def test_a_checkpoint_of_other_ranks_is_refused(learner, trained, tmp_path):
    (tmp_path / "state").mkdir()
    for rank in range(2):
        (tmp_path / "state" / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
    with refuses(ModelError, "2 trainer", "are 1", "trainer.ranks=2"):
        learner.zero.load(tmp_path)
    (tmp_path / "state" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").unlink()
    with refuses(ModelError, tmp_path, "zero_pp_rank_0", "zero_pp_rank_1"):  # of weights by name nothing begins
        learner.zero.load(tmp_path)


def test_the_reference_is_the_model_that_training_began_with(learner, trained, tiny_model):
    """After two steps the policy has moved; scoring with the reference leaves it, bit for bit, where it was."""
    learner.zero.load(trained[3])
    before = {name: value.clone() for name, value in learner.full_state().items()}
    found, own = learner.reference_logprobs(rows()), learner.score_rows(rows())
    plain = Plain(tiny_model)
    for row, values, moved in zip(rows(), found, own, strict=True):
        torch.testing.assert_close(torch.from_numpy(values), plain.logprobs(row).detach(), atol=1e-5, rtol=0)
        assert np.abs(values - moved).max() > 1e-3
    assert all(torch.equal(value, before[name]) for name, value in learner.full_state().items())
    assert learner.zero.module.training


def test_without_an_update_a_step_measures_what_it_would_learn_from(learner, loss, trained):
    learner.zero.load(trained[3])
    before = {name: value.clone() for name, value in learner.full_state().items()}
    measured = learner.step(rows(), loss, 1e-3, 1, update=False)
    assert all(torch.equal(value, before[name]) for name, value in learner.full_state().items())
    learnt = learner.step(rows(), loss, 1e-3, 1)
    assert (measured.loss, measured.statistics, measured.tokens) == (learnt.loss, learnt.statistics, learnt.tokens)
    assert (measured.grad_norm, learnt.grad_norm > 0) == (0.0, True)
    assert all((a == b).all() for a, b in zip(measured.logprobs, learnt.logprobs, strict=True))


def test_on_the_cpu_no_memory_is_measured(learner):
    assert learner.peak_memory_gib() is None


def gradients(learner, some, objective):
    """Of the whole batch's loss by our packing, in micro-batches of at most 40 tokens, past DeepSpeed's own hooks."""
    named = dict(learner.zero.module.model.named_parameters())
    micros = pack(some, 40, 0, 1, objective.row_columns, objective.aggregation)
    loss = sum(learner._loss(micro, objective, 1, {}, {}) for micro in micros)
    return loss.item(), dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def with_columns(some):
    """Advantages, and log-probs of a sampling policy some way off, so that some ratios are clipped."""
    source = torch.Generator().manual_seed(7)
    for index, row in enumerate(some):
        noise = torch.randn(len(row.mask), generator=source)
        row.columns |= {"advantages": (-1.0) ** index * (index + 1) / 2, "old_logprobs": (noise / 5 - 4.6).tolist()}
        row.mask = [int(i % 4 != 2) for i in range(len(row.mask))]
    return some


def test_the_gradient_of_a_clipped_loss_is_plain_torchs(learner, trained, tiny_model):
    plain = Plain(tiny_model)
    plain.model.load_state_dict(learner.zero.module.model.state_dict())
    objective = Objective(overridden(*TINY, "algorithm.loss_agg_mode=seq-mean-token-mean"))
    some, means = with_columns(rows()), []
    for row in some:
        act = torch.tensor(row.mask, dtype=torch.bool)
        logprobs = plain.logprobs(row)[act]
        ratio = (logprobs - torch.tensor(row.columns["old_logprobs"])[act]).exp()
        a = row.columns["advantages"]
        each = torch.maximum(-a * ratio, -a * ratio.clamp(1 - 0.2, 1 + 0.2))
        each = torch.minimum(each, torch.tensor(-3.0 * a)) if a < 0 else each
        means.append(each.mean())
    expected = sum(means) / len(some)
    expected.backward()
    loss, found = gradients(learner, some, objective)
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    for name, parameter in plain.model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=2e-6, rtol=1e-4)


def test_merged_turns_have_the_loss_and_gradient_of_their_own_rows(learner, trained):
    """Three turns whose contexts extend each other, in three rows and in one."""
    source = torch.Generator().manual_seed(3)

    def draw(number):
        return torch.randint(3, 99, (number,), generator=source).tolist()

    context, turns = draw(5), []
    for turn in range(3):
        reply = draw(4)
        turns.append(Trajectory(context, reply, [-4.0 - turn / 5] * 4, [1] * 4, "stop"))
        context = [*context, *reply, *draw(2)]
    assert [sum(row.action_mask) for row in merged(turns)] == [12]
    objective = Objective(overridden(*TINY, "algorithm.loss_agg_mode=token-mean"))
    found = [gradients(learner, [
        Row(f"{place}", turn.prompt_tokens + turn.response_tokens, len(turn.prompt_tokens), turn.action_mask,
            {"advantages": 0.7, "old_logprobs": turn.logprobs}) for place, turn in enumerate(some)
    ], objective) for some in (turns, merged(turns))]
    (apart, of_three), (together, of_one) = found
    assert together == pytest.approx(apart, abs=1e-6)
    for name, gradient in of_three.items():
        torch.testing.assert_close(of_one[name], gradient, atol=2e-6, rtol=1e-4)
