"""A tiny random classifier as the reward model: its scores, and every directory that cannot be one."""

import json
from types import SimpleNamespace

import pytest
import torch

from ouroboros.pipeline.settings.config import AuxiliaryModel
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.stages.model import character_tokenizer
from ouroboros.workflows.protocol.prompts import turns_of
from ouroboros.workflows.reward_model import RewardModel, batches, padding_or_end
from tests.configs import element
from tests.golden.messages import refuses, wording
from tests.models import classifier


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return classifier(tmp_path_factory.mktemp("judge"))


def opened(directory, copies=1, **settings):
    own = element(AuxiliaryModel, {"model_path": str(directory), **settings})
    return RewardModel(directory, own, ["cpu"] * copies)


QUESTIONS = ["3 5 = 8", "1 2 = 3", "what is it?", "1 2 = 3"]
RESPONSES = ["3 + 5", "no", "a long and winding answer, longer than all the others", ""]


def asked(*questions):
    return [turns_of(question, None) for question in questions]


def directly(directory, question, response):
    """The score that transformers gives to the conversation alone, in the words of the test's own template."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32).eval()
    ids = character_tokenizer(80)(f"{question}{response}<eos>", add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits.item()


def test_scores_are_those_of_transformers_whatever_the_batches_and_copies(directory):
    expected = [directly(directory, q, r) for q, r in zip(QUESTIONS, RESPONSES, strict=True)]
    assert len({round(value, 4) for value in expected}) == 4
    for settings in ({}, {"max_token_len": 1}, {"max_token_len": 40}, {"copies": 2, "max_token_len": 40}):
        assert opened(directory, **settings).score(asked(*QUESTIONS), RESPONSES) == pytest.approx(expected, abs=1e-5)
    assert opened(directory).score(asked(), []) == []


def test_every_turn_is_a_part_of_the_conversation(directory):
    with_prompt = opened(directory).score([turns_of("b", "a")], ["c"])
    assert with_prompt == pytest.approx([directly(directory, "ab", "c")], abs=1e-5)  # the template only joins


def test_a_conversation_over_the_limit_has_no_score_and_the_others_have_theirs(directory):
    """<eos> counts: 3 + 4 + 1 tokens are the limit."""
    model = opened(directory, max_model_len=8)
    fine, long = model.score(asked("abc", "abc"), ["1234", "12345"])
    assert fine == pytest.approx(directly(directory, "abc", "1234"), abs=1e-5)
    wording(long, "9 tokens", "explorer.auxiliary_models")
    (reason,) = opened(directory).score(asked("a"), ["b" * 100])  # it has positions for 80
    assert "at most 80" in reason


def test_a_conversation_that_the_template_refuses_has_no_score(directory, tmp_path):
    classifier(tmp_path, chat_template="{{ raise_exception('no system message') }}")
    (reason,) = opened(tmp_path).score([turns_of("a", "be brief")], ["b"])
    wording(reason, "conversation")
    (reason,) = opened(classifier(tmp_path, chat_template="{# nothing #}")).score(asked("a"), ["b"])
    assert reason.startswith("an empty conversation")


@pytest.mark.parametrize(("lengths", "budget", "expected"), [
    ([5, 5, 5], 10, [[0, 1], [2]]), ([2, 9, 3, 3], 9, [[1], [2, 3, 0]]),  # 3 x 3 = 9
    ([4, 20, 4], 8, [[1], [0, 2]]), ([1, 1], 1, [[0], [1]]), ([], 8, [])])
def test_batches_keep_to_the_budget_counted_with_padding(lengths, budget, expected):
    assert batches(lengths, budget) == expected


def edited(directory, **values):
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return directory


def test_a_causal_model_has_no_score_head(tiny_model):
    with refuses(ModelError, "model-tiny", "Qwen2ForCausalLM"):
        opened(tiny_model)


def test_a_classifier_with_several_labels_is_no_reward_model(tmp_path):
    with refuses(ModelError, "3 labels"):
        opened(classifier(tmp_path, num_labels=3))


def test_a_head_without_weights_is_not_made_up(tmp_path):
    from safetensors.torch import load_file, save_file

    path = classifier(tmp_path) / "model.safetensors"
    weights = {name: tensor for name, tensor in load_file(path).items() if name != "score.weight"}
    save_file(weights, path, {"format": "pt"})
    with refuses(ModelError, "score.weight"):
        opened(tmp_path)


def test_what_cannot_be_read_is_named(tmp_path):
    directory = classifier(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).unlink()
    with refuses(ModelError, directory):
        opened(directory)
    classifier(tmp_path, chat_template=None)
    with refuses(ModelError, "chat_template"):
        opened(directory)
    (classifier(tmp_path) / "config.json").unlink()
    with refuses(ModelError, "config.json"):
        opened(directory)


def test_more_tokens_than_positions_are_refused(directory):
    with refuses(ModelError, "max_model_len=81:", "80 tokens"):
        opened(directory, max_model_len=81)


def test_without_a_padding_token_no_batch_can_be_scored(tmp_path):
    directory = edited(classifier(tmp_path), pad_token_id=None)
    expected = [directly(directory, q, r) for q, r in zip(QUESTIONS, RESPONSES, strict=True)]
    assert opened(directory).score(asked(*QUESTIONS), RESPONSES) == pytest.approx(expected, abs=1e-5)  # the tokenizer's
    config = directory / "tokenizer_config.json"
    config.write_text(config.read_text().replace('"pad_token": "<pad>"', '"pad_token": null'))
    with refuses(ModelError, "padding", "pad_token_id", "config.json"):
        opened(directory)


def test_the_padding_of_a_model_with_code_of_its_own_is_read_where_it_is_trusted(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "padded", "auto_map": {"AutoConfig": "configuration_padded.PaddedConfig"}, "pad_token_id": 5}))
    (tmp_path / "configuration_padded.py").write_text(
        "from transformers import PretrainedConfig\n\n\nclass PaddedConfig(PretrainedConfig):\n"
        "    model_type = 'padded'\n\n    def __init__(self, pad_token_id=None, **more):\n"
        "        super().__init__(**more)\n        self.pad_token_id = pad_token_id\n")
    nothing = SimpleNamespace(pad_token_id=None, eos_token_id=None)
    assert padding_or_end(tmp_path, nothing, trust=True) == 5
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert padding_or_end(tmp_path, SimpleNamespace(pad_token_id=None, eos_token_id=7), trust=False) == 7
    with pytest.raises(ModelError):
        padding_or_end(tmp_path, nothing, trust=False)
