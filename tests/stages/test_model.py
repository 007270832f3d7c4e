"""The small random model and its tokenizer, as a Hugging Face directory that others read as we do."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from ouroboros.pipeline.settings.model import Model
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.pipeline.store.model_shape import rewritten
from ouroboros.stages.model import CHARACTERS, SPECIAL, work
from tests.configs import TINY
from tests.golden.messages import refuses


def test_a_tokenizer_that_anyone_loads_has_one_token_per_character(tiny_model):
    """The whole alphabet, spaces and line ends included, comes back; ids follow the order of the list."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model, local_files_only=True)
    tokens = [tokenizer(c)["input_ids"] for c in CHARACTERS]
    assert tokens == [[3 + index] for index in range(len(CHARACTERS))]
    for text in ("12 5 = 17", " it's  so\n\n\nsaid: {[(<#>)]}  ", "ABCxyz 123456 +-*/"):
        (tokens,) = tokenizer([text])["input_ids"]
        assert len(tokens) == len(text)
        assert tokenizer.decode(tokens) == text
    assert tokenizer("1\u00d72")["input_ids"] == tokenizer("12")["input_ids"]  # other characters are left out
    assert [tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id] == [0, 1, 2]
    assert len(tokenizer) == len(SPECIAL) + len(CHARACTERS) == 99


def test_the_model_has_the_shape_that_was_asked_for(tiny_model):
    """Embedding 99 x 64; a layer: q and o 64 x 64, k and v 64 x 32, biases 64 + 32 + 32, MLP 3 x 64 x 256, norms
    2 x 64; a last norm of 64."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, local_files_only=True)
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 64 + 32 + 32 + 3 * 64 * 256 + 2 * 64
    assert sum(p.numel() for p in model.parameters()) == 99 * 64 + 2 * layer + 64
    assert model.config.max_position_embeddings == 64
    assert (model.config.num_key_value_heads, model.config.eos_token_id) == (1, 1)
    assert model.dtype == torch.float32
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_seed_decides_the_weights(tiny_model, tmp_path, context_of):
    """The same seed, the same bytes; another seed, other weights."""
    found = {}
    for name, seed in (("a", 1), ("b", 2)):
        context = context_of(tmp_path / name, *TINY)
        context.config.seed = seed
        work(context)
        found[name] = load_file(tmp_path / name / "model.safetensors")
        assert context.made["vocabulary"] == 99
    first = load_file(tiny_model / "model.safetensors")
    assert all(torch.equal(first[key], value) for key, value in found["a"].items())
    assert not torch.equal(first["model.embed_tokens.weight"], found["b"]["model.embed_tokens.weight"])


ROPE = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}


@pytest.fixture
def based(tiny_model, tmp_path, context_of):
    """based(overrides): the directory of tiny_model with what these override."""
    def make(*overrides: str) -> Path:
        context = context_of(tmp_path / "made", *TINY, "model.init.enable=false", f"model.model_path={tiny_model}",
                             *overrides)
        context.inputs["base"] = tiny_model
        work(context)
        return context.directory

    return make


def test_config_json_is_written_for_trainer_and_engine(tiny_model, based):
    made = based("model.rope_theta=500", "model.rope_scaling={rope_type: yarn, factor: 2.0, "
                 "original_max_position_embeddings: 64}", "model.override_config={max_position_embeddings: 128}")
    model, before = (AutoModelForCausalLM.from_pretrained(one, local_files_only=True) for one in (made, tiny_model))
    assert {**ROPE, "rope_theta": 500.0}.items() <= model.config.rope_parameters.items()
    assert model.config.max_position_embeddings == 128
    assert torch.equal(model.model.embed_tokens.weight, before.model.embed_tokens.weight)
    tokens = torch.arange(5, 40)[None]
    assert not torch.allclose(model(tokens).logits, before(tokens).logits, atol=1e-3)
    assert len(AutoTokenizer.from_pretrained(made, local_files_only=True)) == 99


def test_a_key_that_the_model_does_not_have_is_named(based):
    with refuses(ModelError, "model.override_config.hiden_size"):
        based("model.override_config={hiden_size: 64}")


@pytest.mark.parametrize(("written", "given", "held"), [
    ({"rope_theta": 1e6, "rope_scaling": None}, {"rope_theta": 5e5}, {"rope_theta": 5e5, "rope_scaling": None}),
    ({"rope_theta": 1e6}, {"rope_scaling": ROPE}, {"rope_theta": 1e6, "rope_scaling": ROPE}),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, {"rope_scaling": ROPE},
     {"rope_parameters": {**ROPE, "rope_theta": 1e6}}),
    ({"rope_parameters": {**ROPE, "rope_theta": 1e6}}, {"rope_theta": 5e5},
     {"rope_parameters": {**ROPE, "rope_theta": 5e5}}),
    ({"text_config": {"rope_theta": 1e6}}, {"rope_theta": 5e5}, {"text_config": {"rope_theta": 5e5}}),
    ({"text_config": {"a": 1, "b": 2}}, {"override_config": {"text_config": {"b": 3}}},
     {"text_config": {"a": 1, "b": 3}})])
def test_where_a_value_is_written(tmp_path, written, given, held):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", **written}))
    assert rewritten(str(tmp_path), Model.model_validate(given)) == {"model_type": "qwen2", **held}


@pytest.mark.parametrize(("written", "given"), [
    ({}, {"override_config": {"hidden_size": -1}}), ({}, {"override_config": {"max_position_embeddings": "long"}}),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, {"rope_theta": 5e5})])
def test_what_would_not_be_read_is_refused(tmp_path, written, given):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", **written}))
    with refuses(ModelError):
        rewritten(str(tmp_path), Model.model_validate(given))
