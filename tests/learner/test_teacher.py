"""The teacher in the trainer: its log-probs against plain torch, its cache, and what it refuses."""

import logging
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.checkpoints import weights_hash
from ouroboros.pipeline.store.errors import DataError, ModelError
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.objective import Objective
from ouroboros.stages.learner.replay_engine import GradientEngine
from ouroboros.stages.learner.teacher import Teacher, divergence, refuse_other_vocabulary
from ouroboros.stages.model import work
from ouroboros.workflows.protocol.kept import Kept
from tests.configs import TINY, overridden
from tests.golden.messages import refuses

WARM = ("model.temperature=0.5",)


@pytest.fixture(scope="module")
def larger(tmp_path_factory):
    """A random model with the same tokenizer, wider and deeper than the tiny one."""
    directory = tmp_path_factory.mktemp("teacher")
    config = overridden(*TINY, "seed=9", "model.init.hidden_size=128", "model.init.num_hidden_layers=4")
    work(Context("toy/one", "model", "large", directory, config, {}, logging.getLogger("tests")))
    return directory


@pytest.fixture
def teacher(tmp_path, context_of, tiny_model, larger, process):
    return lambda *words: Teacher(context_of(tmp_path / "rft", *TINY, *WARM, *words, teacher=larger), tiny_model,
                                  process)


def rows(count=5):
    """Rows of different lengths whose second response token is the environment's."""
    draw = np.random.default_rng(3)
    return [Row(f"r{i}", draw.integers(0, 99, 3 + 2 * i).tolist(), 1 + i, [1, 0] + [1] * i) for i in range(count)]


def test_log_probs_are_those_of_the_other_model_at_the_policys_temperature(teacher, larger):
    """Every row alone through the plain model, logits / 0.5, against packed micro-batches of at most 64 tokens."""
    found = teacher("trainer.max_token_len_per_gpu=64").logprobs(rows())
    plain = AutoModelForCausalLM.from_pretrained(larger, dtype=torch.float32).eval()
    for row, scored in zip(rows(), found, strict=True):
        with torch.no_grad():
            logits = plain(torch.tensor([row.tokens])).logits[0] / 0.5
        every = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(row.tokens)[1:, None])[:, 0].numpy()
        mine = every[row.prompt_length - 1:][np.array(row.mask, bool)]
        np.testing.assert_allclose(scored, mine, atol=2e-5)


def test_what_a_teacher_said_is_read_and_not_asked_again(teacher, larger, monkeypatch):
    first, some = teacher(), rows()
    first.add(some)
    assert some[2].columns["teacher_logprobs"].shape == (4,)
    assert some[2].columns["teacher_logprobs"][1] == 0.0  # the environment's token
    stored = tables.read(tables.step_file(first.context.directory, "teacher", 0), records.FixedLogprobs).to_pylist()
    assert [r["experience_id"] for r in stored] == ["r0", "r1", "r2", "r3", "r4"]
    assert stored[0]["model_hash"] == weights_hash(larger)
    resumed, again = teacher(), rows()
    monkeypatch.setattr(resumed, "score", None)  # it would fail if it were asked
    resumed.add(again)
    assert again[4].columns["teacher_logprobs"].tolist() == some[4].columns["teacher_logprobs"].tolist()


GKD = ("algorithm.algorithm_type=gkd", "trainer.logprob_chunk_tokens=4", "trainer.max_token_len_per_gpu=64")


def various():
    """The rows, of which one has a temperature of its own, and two were sampled among some tokens."""
    made = rows()
    made[1].temperature = 2.0
    for row, sizes in ((made[2], (5, 2, 4)), (made[4], (3, 0, 1, 6, 5))):
        sampled = np.array(row.tokens[row.prompt_length :])[np.array(row.mask, bool)]
        row.kept = Kept.of([np.array([token, *(id_ for id_ in range(40, 50) if id_ != token)])[:size]
                            for token, size in zip(sampled, sizes, strict=True)])
    return made


def forward_kl(student, teacher, some, count):
    """The mean over action tokens, in float64 from whole distributions, with the rest as one event."""
    found = []
    for row in some:
        both = [model(torch.tensor([row.tokens])).logits[0, row.prompt_length - 1 : -1][torch.tensor(row.mask) > 0]
                / (row.temperature or 0.5) for model in (student, teacher)]
        sets = row.kept.sets() if row.kept else [[]] * sum(row.mask)
        for q, p, kept in zip(*both, sets, strict=True):
            among = torch.tensor(kept, dtype=torch.int64) if len(kept) else torch.arange(len(q))
            q, p = q[among].softmax(-1), p[among].softmax(-1)
            order = p.argsort(descending=True)
            q, p = q[order], p[order]
            kl = (p[:count] * (p[:count] / q[:count]).log()).sum()
            rest = p[count:].sum() * (p[count:].sum() / q[count:].sum()).log() if len(p) > count else 0.0
            found.append(kl + rest)
    return torch.stack(found).mean()


@pytest.mark.parametrize("count", [3, 1024])
def test_the_forward_kl_and_its_gradient_are_those_of_whole_distributions(count, teacher, larger, tiny_model, process):
    """Temperatures, kept sets and chunks of 4 positions in packed rows, against row by row in float64; 1,024 tokens
    are the whole vocabulary. Read from the table again, it is the same."""
    words = (*GKD, f"algorithm.policy_loss_fn_args.top_k={count}")
    config, some = overridden(*TINY, *WARM, *words), various()
    models = [AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64).eval() for path in (tiny_model, larger)]
    wanted = forward_kl(*models, some, count)
    wanted.backward()
    for _ in range(2):
        some = various()
        one = teacher(*words)
        one.add(some)
        for row in some:
            row.columns |= {"old_logprobs": 0.0, "rollout_logprobs": 0.0, "advantages": 0.0}
        actor = Actor(tiny_model, config, process, 0.5, engine=GradientEngine)
        assert actor.step(some, Objective(config), 1e-3, 1).loss == pytest.approx(wanted.item(), rel=1e-5)
    gradients = {f"model.{name}": part.grad for name, part in models[0].named_parameters()}
    assert {*actor.zero.gradients} == {*gradients}
    for name, gradient in actor.zero.gradients.items():
        torch.testing.assert_close(gradient.double(), gradients[name], rtol=1e-3, atol=1e-6)
    alone = [actor.step([row], Objective(config), 1e-3, 1).loss * sum(row.mask) for row in some]
    assert sum(alone) / sum(sum(row.mask) for row in some) == pytest.approx(wanted.item(), rel=1e-5)


def test_a_tokenizer_with_other_ids_is_refused():
    student = {"a": 0, "b": 1, "c": 2}
    refuse_other_vocabulary({**student, "d": 3}, student, "t")  # it may know more
    with refuses(ModelError, "2 of", "policy's 3", "'b'", "1 of"):
        refuse_other_vocabulary({"a": 0, "b": 2, "c": 1}, student, "t")
    with refuses(ModelError, "'c'", "2 of"):
        refuse_other_vocabulary({"a": 0, "b": 1}, student, "t")


def test_token_ids_behind_the_teachers_vocabulary_are_refused(teacher):
    with refuses(DataError, "id 99", "teacher's", "99 entries"):
        teacher().logprobs([Row("r", [1, 2, 99], 1, [1, 1])])


def test_a_teacher_without_room_for_the_policys_sequences_is_refused(tmp_path, context_of, tiny_model, larger, process):
    short = shutil.copytree(larger, tmp_path / "short")
    config = (short / "config.json").read_text()
    (short / "config.json").write_text(config.replace('"max_position_embeddings": 64', '"max_position_embeddings": 32'))
    with refuses(ModelError, "32 tokens", "up to 64"):
        Teacher(context_of(tmp_path / "rft", *TINY, teacher=short), tiny_model, process)


def test_the_divergence_is_a_mean_over_action_tokens():
    """log p - log t: 0.5 and -0.25 in one row (its middle token is the environment's), 1.0 in the other: 1.25 / 3."""
    columns = [{"old_logprobs": [-1.0, -9.0, -2.0], "teacher_logprobs": [-1.5, 0.0, -1.75]},
               {"old_logprobs": [-0.5], "teacher_logprobs": [-1.5]}]
    made = [Row("a", [1, 2, 3, 4], 1, [1, 0, 1], columns[0]), Row("b", [1, 2], 1, [1], columns[1])]
    assert divergence(made) == pytest.approx(1.25 / 3)
