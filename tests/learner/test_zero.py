"""One rank of DeepSpeed on the CPU against plain torch, and the shapes of the learning rate."""

import math
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from operators.losses.demonstrations import sft
from pipeline.checkpoints import copy_model_files
from pipeline.errors import ModelError
from pipeline.process import namespace
from stages.learner.packing import Row
from stages.learner.zero import ZeroLearner, learning_rate
from tests.configs import TINY, overridden

# ---------------------------------------------------------------------------------------------------- learning rate


def rates(shape, warmup=0, least=0.0, total=10, peak=1.0):
    given = SimpleNamespace(lr=peak, lr_scheduler_type=shape, lr_warmup_steps=warmup, min_lr_ratio=least)
    return [learning_rate(step, total, given) for step in range(1, total + 1)]


def test_constant():
    assert rates("constant", least=0.5, peak=3e-4) == [3e-4] * 10  # its floor is for shapes that fall


def test_warmup_rises_in_equal_steps_to_the_peak():
    assert rates("constant", warmup=4)[:6] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_falls_to_its_floor_at_the_last_step():
    """2 steps up, 8 down to 0.2: 0.1 a step."""
    assert rates("linear", warmup=2, least=0.2) == pytest.approx([0.5, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2])


def test_cosine_is_half_way_down_in_the_middle():
    found = rates("cosine", least=0.1)
    assert found[4] == pytest.approx(0.55)  # (1 + 0.1) / 2
    assert found[9] == pytest.approx(0.1)
    assert found[0] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 10)) / 2)
    assert found == sorted(found, reverse=True)


def test_a_warmup_as_long_as_the_training_or_longer():
    assert rates("cosine", warmup=10)[-1] == 1.0
    assert rates("linear", warmup=20)[-1] == 0.5


# ------------------------------------------------------------------------------------------------------- one rank


@pytest.fixture(scope="module")
def learner(tiny_model):
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": "0"}
    config = namespace(overridden(*TINY, "trainer.grad_clip=0.5", "algorithm.optimizer.weight_decay=0.1"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in alone.items():
            patch.setenv(name, value)
        made = ZeroLearner(tiny_model, config)
        yield made
        made.close()


def rows():
    source = torch.Generator().manual_seed(1)
    sizes = ((5, 9), (3, 4), (20, 16), (2, 1), (7, 7))
    return [Row(f"r{i}", torch.randint(3, 99, (p + r,), generator=source).tolist(), p, [1] * r)
            for i, (p, r) in enumerate(sizes)]


def loss(logprobs, old_logprobs, advantages):
    return sft(logprobs)


class PlainTorch:
    """The same optimizer steps by transformers and torch alone, row by row."""

    def __init__(self, path):
        self.model = AutoModelForCausalLM.from_pretrained(path, local_files_only=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8,
                                           weight_decay=0.1)

    def logprobs(self, row):
        scores = self.model(torch.tensor([row.tokens])).logits[0].log_softmax(-1)
        targets = torch.tensor(row.tokens[row.prompt_length :])
        return scores[row.prompt_length - 1 : -1].gather(-1, targets[:, None])[:, 0]

    def step(self, some):
        found = torch.cat([self.logprobs(row) for row in some])
        self.optimizer.zero_grad()
        (-found).mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        return (-found).mean().item(), norm.item()


@pytest.fixture(scope="module")
def trained(learner, tiny_model, tmp_path_factory):
    """Two steps of both, the second in many micro-batches; then a checkpoint."""
    plain = PlainTorch(tiny_model)
    directory = tmp_path_factory.mktemp("checkpoint")
    first = learner.step(rows(), loss, 1e-3), plain.step(rows())
    learner.budget = 36  # the longest row alone
    second = learner.step(rows(), loss, 1e-3), plain.step(rows())
    learner.budget = 4096
    learner.save(directory)
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
    assert sorted(ours.logprobs) == [0, 1, 2, 3, 4]
    assert [len(ours.logprobs[i]) for i in range(5)] == [9, 4, 16, 1, 7]
    total = sum(values.sum() for values in ours.logprobs.values())
    assert -total / 37 == pytest.approx(ours.loss, abs=1e-5)
    assert 0 < ours.statistics["entropy"] <= math.log(99)


def test_a_probe_is_scored_at_temperature_1_and_leaves_the_trainer_as_it_was(learner, trained):
    tokens = rows()[2].tokens
    learner.engine.module.temperature = 0.5
    found = learner.score(tokens)
    assert learner.engine.module.temperature == 0.5
    assert learner.engine.module.training
    learner.engine.module.temperature = 1.0
    plain = trained[2].logprobs(Row("x", tokens, 1, [1] * 35)).tolist()
    assert found == pytest.approx(plain, abs=1e-4)


def test_a_checkpoint_brings_back_weights_and_optimizer_exactly(learner, trained):
    """The step after it is bit for bit the same, twice."""
    found = []
    for _ in range(2):
        learner.load(trained[3])
        result = learner.step(rows(), loss, 1e-3)
        found.append((result.loss, {name: value.clone() for name, value in learner.full_state().items()}))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(value, found[1][1][name]) for name, value in found[0][1].items())


def test_exported_weights_are_read_by_transformers(learner, trained, tiny_model, tmp_path):
    copy_model_files(tiny_model, tmp_path)
    learner.load(trained[3])
    learner.export(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    state = learner.full_state()
    assert all(torch.equal(value, state[name]) for name, value in model.named_parameters())


def test_a_checkpoint_of_other_ranks_is_refused(learner, trained, tmp_path):
    (tmp_path / "state").mkdir()
    for rank in range(2):
        (tmp_path / "state" / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
    with pytest.raises(ModelError, match=r"was written by 2 trainer ranks, now there are 1.*trainer\.ranks=2"):
        learner.load(tmp_path)


def test_on_the_cpu_no_memory_is_measured(learner):
    assert learner.peak_memory_gib() is None
