"""Reward models: their rows, their steps against plain torch, their checkpoints as classifiers of transformers."""

import json
import math

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from ouroboros.pipeline.settings.config import AuxiliaryModel
from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.checkpoints import copy_model_files
from ouroboros.pipeline.store.errors import DataError, ModelError
from ouroboros.stages.learner.batches.reward_pairs import RewardPairs
from ouroboros.stages.learner.engine.snapshot import written
from ouroboros.stages.learner.objective import Objective
from ouroboros.stages.learner.replay_engine import GradientEngine
from ouroboros.stages.learner.scorer import Scorer
from ouroboros.stages.learner.separation import prove_critic
from ouroboros.stages.model import character_tokenizer
from ouroboros.workflows.protocol.prompts import turns_of
from ouroboros.workflows.reward_model import RewardModel
from tests import models
from tests.configs import TINY, element, overridden
from tests.factories import TEXT, row
from tests.learner.plain import PlainTorch

SETTINGS = ("algorithm.algorithm_type=reward_model", "algorithm.optimizer.weight_decay=0.1", "trainer.grad_clip=0.5",
            "algorithm.policy_loss_fn_args.center_rewards_coefficient=0.1")
PAIRS = [("1 2", "1+2", "2-1"), ("1 2", "1+2", "1"), ("7", "7", "70"), ("what", "this and that", "no")]


@pytest.fixture
def source(tmp_path, context_of, tiny_model):
    """source([(question, chosen, rejected), ...], "key=value", ..., margins=[...])"""

    def make(pairs, *overrides, margins=None, model=tiny_model, **more):
        rows = [row(records.Task, task_id="same", row=i, split="preference", question=question, chosen=chosen,
                    rejected=rejected, margin=margins[i] if margins else None, **more)
                for i, (question, chosen, rejected) in enumerate(pairs)]
        tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, rows)
        context = context_of(tmp_path / "reward", *TINY, *SETTINGS, "buffer.batch_size=1", *overrides,
                             tasks=tmp_path / "curate")
        return RewardPairs(context, model), context

    return make


ALL = "buffer.trainer_input.experience_buffer.held_out_ratio=0"


def test_a_row_is_a_conversation_and_a_token_behind_it(source):
    """One token a character and a colon after the prompt; the last token is the end, and the token behind it the only
    one with an action. What both begin with is the prompt: `1 2:`, and of the second pair `1 2:1`."""
    found, _ = source(PAIRS[:2], ALL, margins=[0.5, 0.0])
    first, second = found.rows[:2]
    written_out = character_tokenizer(80)("1 2:1+2<eos>", add_special_tokens=False)["input_ids"]
    assert first.tokens == [*written_out, written_out[-1]]
    assert (first.prompt_length, first.mask, second.mask) == (4, [0] * 4 + [1], [0] * 4 + [1])
    assert [one.prompt_length for one in found.rows[2:]] == [5, 5]
    assert [one.columns["margin"] for one in found.rows] == [0.5, 0.5, 0.0, 0.0]


def test_pairs_of_one_prompt_are_held_out_together(source):
    """By a hash: of 40 prompts with 3 pairs each about half."""
    many = [(f"{i}", "1", f"{2 + j}") for i in range(40) for j in range(3)]
    found, _ = source(many, "buffer.trainer_input.experience_buffer.held_out_ratio=0.5")
    assert {len(rows) for rows in found.held.values()} == {6}
    assert 10 < len(found.held) < 30
    assert found.count == 120 - 3 * len(found.held)
    again, _ = source(many, "buffer.trainer_input.experience_buffer.held_out_ratio=0.5")
    assert again.held.keys() == found.held.keys()


def test_pairs_that_cannot_be_used_are_left_out_or_rejected(source):
    """TINY's limits are 40 and 24 tokens: a conversation of 64 has no room for the token behind it."""
    found, _ = source([("1", "1" * 60, "2"), ("1", "1" * 61, "2")], ALL)
    assert [one.id for one in found.rows] == ["same/0/chosen", "same/0/rejected"]
    with pytest.raises(DataError):
        source([("1", "1" * 61, "2")], ALL)
    messages = json.dumps({"messages": [{"role": "user", "content": "1"}]})
    with pytest.raises(DataError):
        source(PAIRS, ALL, messages=messages)


class Plain(PlainTorch):
    def __init__(self, path):
        self.head = torch.nn.Linear(64, 1, bias=False)
        super().__init__(path, self.head)

    def loss(self, some):
        scores = torch.cat([self.head(self.hidden(one.tokens[:-1])[-1]) for one in some])
        chosen, rejected = scores[0::2], scores[1::2]
        margins = torch.tensor([one.columns["margin"] for one in some[0::2]])
        return (-torch.nn.functional.logsigmoid(chosen - rejected - margins) + 0.1 * (chosen + rejected) ** 2).mean()


def test_steps_are_those_of_plain_torch_and_the_checkpoint_is_the_classifier_that_explorers_ask(
        source, tiny_model, process, tmp_path):
    found, context = source(PAIRS, ALL, margins=[0.5, 0.0, 2.0, 0.0])
    scorer = Scorer(tiny_model, context.config, process, found.padding)
    prove_critic(scorer, context.config, TEXT)
    objective, plain = Objective(context.config), Plain(tiny_model)
    assert scorer.scores(found.rows) == [0.0] * 8  # the head begins at zero
    for number, budget in enumerate((4096, 64, 70), 1):
        scorer.budget.tokens = budget
        result = scorer.step(found.rows, objective, 1e-3, number)
        loss, norm = plain.step(found.rows)
        assert (result.loss, result.grad_norm) == pytest.approx((loss, norm), rel=1e-4)
        if number == 1:
            assert result.statistics["accuracy"] == 0.5
    place = tmp_path / "checkpoint"
    copy_model_files(tiny_model, place / "model")
    written(scorer.save(place))
    scores = scorer.scores(found.rows)
    model = RewardModel(place / "model", element(AuxiliaryModel, {"model_path": "x"}), ["cpu"])
    for (question, *responses), mine in zip(PAIRS, zip(scores[0::2], scores[1::2], strict=True), strict=True):
        assert model.score([turns_of(question, None)] * 2, responses) == pytest.approx(mine, abs=1e-5)
    again = Scorer(place / "model", context.config, process, found.padding)  # further training begins where it ended
    assert again.scores(found.rows) == pytest.approx(scores, abs=1e-6)


def test_the_gradient_is_that_of_the_likelihood_with_margins_and_centring_in_float64(source, process, tmp_path):
    """dL / dr by hand: of a chosen response -sigmoid(m - d) + 2 c s, of a rejected one sigmoid(m - d) + 2 c s, each
    over the number of pairs; d the difference of their scores, s the sum, m the margin, c the coefficient 0.1."""
    directory = models.classifier(tmp_path / "judge")
    found, context = source(PAIRS, ALL, margins=[0.5, 0.0, 2.0, 0.0], model=directory)
    scorer = Scorer(directory, context.config, process, found.padding, GradientEngine)
    scorer.budget.tokens = 64
    result = scorer.step(found.rows, Objective(context.config), 1e-3, 1)
    plain = AutoModelForSequenceClassification.from_pretrained(directory, local_files_only=True).double()
    scores = [plain(torch.tensor([one.tokens[:-1]])).logits[0, 0] for one in found.rows]
    loss, by_score = 0.0, []
    for place, margin in enumerate((0.5, 0.0, 2.0, 0.0)):
        chosen, rejected = (score.item() for score in scores[2 * place : 2 * place + 2])
        lost = chosen - rejected - margin
        loss += (math.log1p(math.exp(-lost)) + 0.1 * (chosen + rejected) ** 2) / 4
        by_score += [(sign / (1 + math.exp(lost)) + 0.2 * (chosen + rejected)) / 4 for sign in (-1, 1)]
    torch.stack(scores).backward(torch.tensor(by_score, dtype=torch.float64))
    assert result.loss == pytest.approx(loss, rel=1e-5)
    own, wanted = scorer.zero.gradients, {name: one.grad for name, one in plain.named_parameters()}
    assert {scorer.names[name] for name in own} == {*wanted}
    for name, gradient in own.items():
        torch.testing.assert_close(gradient.double(), wanted[scorer.names[name]], rtol=1e-3, atol=1e-6)


def test_held_out_pairs_are_scored_with_an_interval_over_prompts(source, tiny_model, process):
    """Equal scores are half right: an untrained model has one half, and the interval is that of its prompts."""
    found, context = source([(f"{i}", "1", f"{2 + j}") for i in range(40) for j in range(3)],
                            "buffer.trainer_input.experience_buffer.held_out_ratio=0.5")
    found.score_held_out(context, Scorer(tiny_model, context.config, process, found.padding), 7)
    (score,) = tables.read_scores(context.directory, 7)
    assert (score.metric, score.value, score.tasks, score.rows) == (
        "pair_accuracy", 0.5, len(found.held), 3 * len(found.held))
    assert score.low < 0.5 < score.high


def test_a_classifier_with_its_own_head_is_where_training_begins(source, process, tmp_path):
    directory = models.classifier(tmp_path / "judge")
    found, context = source(PAIRS, ALL, model=directory)
    begun = Scorer(directory, context.config, process, found.padding)
    model = RewardModel(directory, element(AuxiliaryModel, {"model_path": "x"}), ["cpu"])
    assert begun.scores(found.rows[:2]) == pytest.approx(
        model.score([turns_of("1 2", None)] * 2, ["1+2", "2-1"]), abs=1e-5)


def test_a_classifier_with_two_labels_is_refused(source, process, tmp_path):
    directory = models.classifier(tmp_path / "judge", num_labels=2)
    with pytest.raises(ModelError):
        Scorer(directory, overridden(*TINY, *SETTINGS), process, 0)
