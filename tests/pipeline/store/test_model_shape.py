"""The plain fields of a model's config.json: readable, long enough, cut evenly."""

import json

import pytest

from ouroboros.pipeline.settings.model import Model
from ouroboros.pipeline.store import model_shape
from ouroboros.pipeline.store.errors import ModelError
from tests.golden.messages import wording
from tests.sizes import QWEN2


@pytest.mark.parametrize(("change", "words"), [
    ({"hidden_size": "896", "num_hidden_layers": 1.5}, "has hidden_size='896', num_hidden_layers=1.5; needed whole"),
    ({"vocab_size": 0}, "has vocab_size=0; needed whole numbers above 0"), ({"num_attention_heads": True}, "=True;"),
    ({"model_type": ["qwen3"]}, "no model_type"), ({"model_type": None}, "no model_type")])
def test_a_field_of_the_wrong_kind_is_an_error(tmp_path, change, words):
    (tmp_path / "config.json").write_text(json.dumps(QWEN2 | change))
    with pytest.raises(ModelError) as error:
        model_shape.read_config(str(tmp_path))
    assert words in str(error.value) == model_shape.wrong_model(str(tmp_path))
    assert model_shape.plain_config(Model.model_construct(model_path=str(tmp_path))) is None


def test_plain_fields_are_those_of_a_directory_or_of_the_settings_that_create_a_model(tmp_path):
    model = Model.model_construct(model_path=str(tmp_path))
    assert model_shape.plain_config(model) is None
    (tmp_path / "config.json").write_text(json.dumps(QWEN2 | {"head_dim": None}))
    assert model_shape.plain_config(model) == QWEN2 | {"head_dim": None}
    assert model_shape.plain_config(Model()) is None
    assert model_shape.plain_config(Model.partial({"init": {"enable": True}, "model_path": None})) == {"enable": True}


def test_room_is_judged_by_the_longest_sequence():
    model = Model(max_prompt_tokens=1000, max_response_tokens=25)
    assert model_shape.room_problem("/m", model, 1025) is None
    assert model_shape.room_problem("/m", model, None) is None
    wording(model_shape.room_problem("/m", model, 1024), "/m", "1024", "(max_position_embeddings)")
    wording(model_shape.room_problem("/m", model.but("max_model_len", 2048), 1025), "2048")


@pytest.mark.parametrize(("parts", "fits"), [(1, True), (2, True), (7, False), (14, True), (4, False)])
def test_heads_are_cut_evenly(parts, fits):
    """14 heads, 2 key/value heads: 7 parts would leave 2 key/value heads for 7, 14 give each to seven."""
    problem = model_shape.split_problem(QWEN2, "trainer.split", parts)
    assert (problem is None) == fits
    assert fits or (problem.key, problem.found) == ("trainer.split", parts)
    assert fits or "1, 2, 14." in problem
    assert model_shape.split_problem({}, "trainer.split", parts) is None  # a model that does not say how many


def test_a_directory_that_is_there_is_no_name_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wording(model_shape.absent_model("org/name"), "(org/name)")
    (tmp_path / "org" / "name").mkdir(parents=True)
    wording(model_shape.absent_model("org/name"), "org/name")
    (tmp_path / "org" / "name" / "tokenizer.json").write_text("{}")
    wording(model_shape.absent_model("org/name"), "org/name", "config.json")
    assert "hf download" not in model_shape.absent_model("org/name")
    wording(model_shape.absent_model("org/name/tokenizer.json"), "directory")
    (tmp_path / "org" / "name" / "adapter_config.json").write_text("{}")
    assert "model.lora_configs" in model_shape.absent_model("org/name")
