"""The JSON schema by which an editor checks recipes: it is what the models say, and takes what composing takes."""

import json

import jsonschema
import pytest
from omegaconf import OmegaConf

from ouroboros.pipeline.settings.editor_schema import editor_schema
from ouroboros.pipeline.store.files import CONF

SCHEMA = json.loads((CONF / "schema.json").read_text(encoding="utf-8"))


def test_the_file_is_what_the_command_prints():
    """`ouro config schema > conf/schema.json` makes it again."""
    assert json.loads(json.dumps(editor_schema())) == SCHEMA


@pytest.mark.parametrize("recipe", sorted((CONF / "recipe").glob("*.yaml")), ids=lambda path: path.stem)
def test_our_recipes_are_right_and_name_it(recipe):
    jsonschema.validate(OmegaConf.to_container(OmegaConf.load(recipe)), SCHEMA)
    assert "# yaml-language-server: $schema=../schema.json\n" in recipe.read_text(encoding="utf-8")


@pytest.mark.parametrize(("given", "place"), [
    ({"sead": 1}, ""), ({"seed": -1}, "seed"), ({"seed": "one"}, "seed"), ({"model": {"pth": "x"}}, "model"),
    ({"algorithm": {"optimizer": {"lr": -1}}}, "algorithm"), ({"trainer": {"zero_stage": 4}}, "trainer"),
    ({"stages": [{"stage_name": "sft", "project": "x"}]}, "stages"), ({"stages": [{"mode": "both"}]}, "stages"),
    ({"stages": [{"stage_name": "sft", "seed": -1}]}, "stages")])
def test_mistakes_are_found(given, place):
    with pytest.raises(jsonschema.ValidationError) as caught:
        jsonschema.validate(given, SCHEMA)
    assert ".".join(map(str, caught.value.absolute_path))[:len(place)] == place


@pytest.mark.parametrize("given", [
    {"algorithm": {"optimizer": {"lr": "${oc.env:LR}"}, "policy_loss_fn": "mine.losses:sharp"}},
    {"stages": [{"stage_name": "sft", "after": [], "algorithm": {"algorithm_type": "sft"}}, {"stage_name": "rft"}]},
    {"buffer": {"explorer_input": {"default_reward_fn_type": ["format_reward", "mine:score"],
                                   "eval_tasksets": [{"name": "a", "path": "a.jsonl"}]}}},
    {"model": {"model_path": None, "max_model_len": None}, "defaults": [{"model": "tiny"}]}])
def test_what_composes_is_right(given):
    assert list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(given)) == []
