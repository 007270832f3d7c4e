"""Adapters as settings: how large they are, what they must not say, and what of them makes a stage another one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ouroboros.pipeline.check.data import missing
from ouroboros.pipeline.check.fit import adapter_words, four_bits_problem, trainer_problem
from ouroboros.pipeline.check.model import wrong_adapters
from ouroboros.pipeline.check.workload import disk
from ouroboros.pipeline.compose.recipe import effective
from ouroboros.pipeline.job.devices import Gpus
from ouroboros.pipeline.plan import requests
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.settings.lora import ADAPTER, ADAPTER_CONFIG, adapter_problem
from ouroboros.pipeline.store.errors import ConfigError
from tests.configs import changed, check, lora, places
from tests.golden.messages import refuses, wording
from tests.models import safetensors
from tests.pipeline.check.test_memory import ADAPTED


def test_a_checkpoint_has_the_model_and_of_the_adapter_all(monkeypatch):
    """TOY untied, 388 parameters, 384 of the adapter, 4 bytes: 4 x 388, 4 x 384 for peft, 12 x 384.
    One save at the end. A version on its way is the adapter, 4 x 384; two of them at sync_offset 0."""
    config = effective(changed({"model.lora_configs": [lora(lora_rank=3)], "buffer.total_steps": 2,
                                "trainer.save_interval": 2, "synchronizer.sync_offset": 0,
                                "synchronizer.sync_interval": 1}), {})
    found = disk(config, ADAPTED, 4)
    assert found.checkpoints == 4 * 388 + 4 * 384 + 12 * 384
    assert found.versions == 2 * 4 * 384


@pytest.mark.parametrize(("several", "keys"), [
    ([{}], []), ([{}, {}], ["model.lora_configs"]),
    *(([{"target_modules": targets}], ["model.lora_configs.0.target_modules"])
      for targets in ("q_proj", [], ["q_proj", "lm_head"], ["embed_tokens"]))])
def test_adapters_that_no_model_can_have(several, keys):
    assert places(check(changed({"model.lora_configs": [lora(**one) for one in several]}))) == keys


@pytest.mark.parametrize(("values", "keys"), [
    ({}, []), ({"model.lora_configs": []}, ["model.load_in_4bit"]), ({"trainer.zero_stage": 3}, ["model.load_in_4bit"]),
    ({"algorithm.advantage_fn": "ppo"}, ["model.load_in_4bit"]), ({"model.dtype": "auto"}, ["model.load_in_4bit"])])
def test_4_bits_are_for_the_frozen_weights_of_an_adapter(values, keys):
    given = {"model.lora_configs": [lora()], "model.load_in_4bit": True, "model.dtype": "bfloat16",
             "mode": "colocate"} | values
    assert {*places(check(changed(given)))} == {*keys}


def test_a_stage_without_an_adapter_is_advised_by_its_own_keys():
    given = {"model.load_in_4bit": True, "model.dtype": "bfloat16", "mode": "colocate"}
    (one,) = check(changed(given | {"stages.rft.model.lora_configs": [lora()]}))
    assert one.do.count("stages.sft.model.") == 2


def test_a_model_whose_layers_are_not_held_in_4_bits_is_refused():
    config = effective(changed({"model.lora_configs": [lora()], "model.load_in_4bit": True}), {})
    assert four_bits_problem(ADAPTED, config) is None
    odd = replace(ADAPTED, unheld="layers.0.mlp.down_proj has 100 inputs, no multiple of 64")
    assert four_bits_problem(odd, config).key == "model.load_in_4bit"
    assert four_bits_problem(odd, config.but("model.load_in_4bit", False)) is None


@pytest.mark.parametrize(("values", "taken"), [({}, False), ({"model.lora_configs": [lora()]}, True)])
def test_4_bits_are_proposed_for_an_adapter_whose_base_is_too_large(values, taken):
    """2 billion weights of linear layers: 3.7 GiB in 16 bits, 1 in 4."""
    size = replace(ADAPTED, parameters=2 * 10**9, linear=2 * 10**9, matrix=10**6)
    config = effective(changed({"mode": "colocate", "synchronizer.sync_offset": 0} | values), {})
    problem = trainer_problem(size, config, Gpus(1, 6.0, True))
    assert ("model.load_in_4bit=true" in str(problem)) == taken


def test_each_stage_in_4_bits_begins_with_a_model_of_them_and_the_base_is_evaluated_whole(tmp_path):
    """Where the setting is not, no identity has it."""
    def made(**of_stages):
        config = changed({"checkpoint_root_dir": str(tmp_path), "model.lora_configs": [lora()],
                          "model.dtype": "float32", **{
            f"stages.{name}.model.load_in_4bit": bits for name, bits in of_stages.items()}})
        return {one.name: one for one in make_plan(config).stages}

    plain, first, last = made(), made(sft=True), made(rft=True)
    inputs = {name: Path(one.inputs.get("model", "")).name.partition("-")[0] for name, one in last.items()}
    assert first["sft"].inputs["model"] == first["quantized"].directory
    assert inputs["quantized"] == "sft"
    assert inputs["rft"] == "quantized"
    assert inputs["evaluate_rft"] == "rft"
    assert plain["sft"].identity == made(sft=False)["sft"].identity != first["sft"].identity
    assert first["model"].identity == plain["model"].identity
    with refuses(ConfigError, "stages.rft.model.load_in_4bit", "sft"):
        made(sft=True, rft=True)


def test_a_stage_in_4_bits_requests_memory_for_the_model_that_it_will_have(tmp_path):
    """Weights of 1/128 GiB: the stage quantized holds them twice, 2 + 1/64 GiB; the training one, whose model is not
    made yet, two processes of 2 GiB and the weights eight times."""
    base = tmp_path / "base"
    base.mkdir()
    with (base / "model.safetensors").open("wb") as file:
        file.truncate(8 << 20)
    for name in ("config.json", "tokenizer_config.json"):
        (base / name).write_text(json.dumps({"model_type": "llama"}))
    plan = make_plan(changed({"checkpoint_root_dir": str(tmp_path), "model.lora_configs": [lora()], "stages": [
        {"stage_name": "sft", "algorithm": {"algorithm_type": "sft"}}], "model.init.enable": False,
        "model.model_path": str(base), "model.load_in_4bit": True, "model.dtype": "bfloat16"}))
    plan.freeze()
    of = {one.name: one for one in plan.stages}
    assert requests.is_submitted(of["quantized"])
    assert requests.memory_gib(of["quantized"]) == 2 + 2 / 128
    assert requests.memory_gib(of["sft"]) == 2 * 2 + 8 / 128


def test_a_check_says_how_much_learns():
    """388 parameters, 384 of the adapter: 98.97%."""
    config = effective(changed({"model.lora_configs": [lora(lora_rank=3)]}), {})
    wording(adapter_words(ADAPTED, config), "rank 3", "384", "model's 388 (98.97%)")
    assert adapter_words(ADAPTED, effective(changed({}), {})) is None


def tensors(rank: int = 32, layer: str = "q_proj", fill: bytes = b"\x3c") -> bytes:
    """A and B of one layer of width 4. fill: every byte of the numbers."""
    name = f"base_model.model.model.layers.0.self_attn.{layer}.lora_"
    held = safetensors({f"{name}A.weight": [rank, 4], f"{name}B.weight": [4, rank]})
    return held[:-32 * rank] + fill * 32 * rank


@pytest.fixture
def begun(tmp_path):
    """A peft directory, as far as it is looked at without a model."""
    directory = tmp_path / "adapter"
    directory.mkdir()
    (directory / ADAPTER).write_bytes(tensors())
    (directory / ADAPTER_CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": 32, "lora_alpha": 32}))
    return directory


PLAIN = {"peft_type": "LORA", "r": 32, "lora_alpha": 32}
BOTH = ["q_proj", "v_proj"]


@pytest.mark.parametrize(("config", "content", "told", "words"), [
    (PLAIN, tensors(), {}, None), (PLAIN, tensors(), {"target_modules": BOTH, "exclude_modules": ["v_proj"]}, None),
    (PLAIN | {"r": 8}, tensors(), {}, "it has r=8, and lora_rank is 32. Set model.lora_configs.0.lora_rank=8."),
    (PLAIN | {"lora_alpha": 8}, tensors(), {}, "it has lora_alpha=8, and lora_alpha is 32."),
    (PLAIN | {"use_dora": True}, tensors(), {}, "it has use_dora=True, which is not trained here"),
    (PLAIN | {"peft_type": "LOHA"}, tensors(), {}, "it has peft_type=LOHA"),
    (PLAIN | {"modules_to_save": ["lm_head"]}, tensors(), {}, "it has modules_to_save=['lm_head']"),
    *((text, tensors(), {}, f"{ADAPTER_CONFIG} there is n") for text in ([1], "{")),  # no object, no JSON
    (PLAIN, tensors(rank=16), {}, "rank 16, and r=32"),
    (PLAIN, tensors(layer="v_proj"), {"target_modules": ["q_proj"]}, "adapts v_proj, and not q_proj"),
    (PLAIN, tensors(), {"target_modules": BOTH}, "adapts q_proj, and not q_proj, v_proj"),
    (PLAIN, tensors()[:-1], {}, "not a whole safetensors file"),
    (PLAIN, b"version https://git-lfs.github.com/spec/v1", {}, "git lfs pull"),
    (PLAIN, tensors(fill=b"\xff"), {}, "NaN"),
    (PLAIN, safetensors({"base_model.model.lm_head.weight": [4, 4]}), {}, "no A or B of LoRA")])
def test_an_adapter_that_cannot_be_trained_on_is_known_before_the_run(begun, config, content, told, words):
    (begun / ADAPTER_CONFIG).write_text(config if isinstance(config, str) else json.dumps(config))
    (begun / ADAPTER).write_bytes(content)
    found = wrong_adapters(changed({"model.lora_configs": [lora(path=str(begun), **told)]}))
    assert [words in one for one in found] == [True] * bool(words)


def test_an_adapter_that_is_not_there_is_named(tmp_path):
    config = changed({"model.lora_configs": [lora(path="no/where")]})
    assert places(missing(config, config.model)) == ["model.lora_configs.0.path"]
    assert wrong_adapters(config) == []
    problem = adapter_problem(lora(path=str(tmp_path)), tmp_path)
    assert (problem.key, ADAPTER_CONFIG in problem.needed) == ("model.lora_configs.0.path", True)


def identities(root, **adapter) -> dict[str, str]:
    """Of every stage, with one adapter in rft."""
    config = changed({"checkpoint_root_dir": str(root), "stages.rft.model": {"lora_configs": [lora(**adapter)]}})
    return {stage.name: stage.identity for stage in make_plan(config).stages}


def test_the_content_of_an_adapter_makes_the_stage_and_its_place_does_not(tmp_path, begun):
    first = identities(tmp_path, path=str(begun))
    moved = begun.rename(tmp_path / "moved")
    assert identities(tmp_path, path=str(moved)) == first
    (moved / ADAPTER).write_text("others")
    second = identities(tmp_path, path=str(moved))
    assert (second["sft"], second["rft"] != first["rft"]) == (first["sft"], True)


def test_the_adapters_name_is_how_it_runs_and_its_rank_is_what_it_makes(tmp_path):
    one = identities(tmp_path)
    assert identities(tmp_path, name="mine") == one
    assert identities(tmp_path, lora_rank=8)["rft"] != one["rft"]
