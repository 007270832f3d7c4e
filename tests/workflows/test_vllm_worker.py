"""Tensors of an engine against the file that it was told to load."""

import json
import shutil
import subprocess

import pytest
import torch
from torch import nn
from vllm import EngineArgs
from vllm.model_executor.models import registry

from ouroboros.pipeline.store import files
from ouroboros.workflows.engines.vllm_engine import import_vllm
from ouroboros.workflows.engines.vllm_past_loaders import PastLoaders
from ouroboros.workflows.engines.vllm_worker import OF_NO_GRAPH, compare_tensors
from tests import zoo
from tests.golden.messages import refuses


@pytest.fixture
def engine_model():
    torch.manual_seed(0)
    return nn.ModuleDict({"norm": nn.Linear(3, 2), "packed": nn.Linear(3, 4, bias=False)}).to(torch.bfloat16)


def test_the_same_tensors_pass_whatever_the_file_calls_or_shapes_otherwise(engine_model):
    same = engine_model["norm"].weight.data.float()
    given = {"norm.weight": same, "packed.weight": torch.ones(8, 3), "elsewhere.weight": torch.ones(2)}
    assert compare_tensors(engine_model, given, "version=000001") is None


def test_a_tensor_of_older_weights_is_named(engine_model):
    other = engine_model["norm"].weight.data.float() * 1.01
    with refuses(RuntimeError, "version=000001", "engine's norm.weight"):
        compare_tensors(engine_model, {"norm.weight": other}, "version=000001")


def merged(dtype):
    """Queries, keys and values of widths 4, 2, 2, and a bias; the published parts."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"attn": nn.ModuleDict({"qkv_proj": nn.Linear(3, 8)})}).to(dtype)
    model.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    held = model["attn"]["qkv_proj"]
    return model, {f"attn.{part}_proj.{kind}": tensor.data.clone() for kind in ("weight", "bias")
                   for part, tensor in zip("qkv", getattr(held, kind).split([4, 2, 2]), strict=True)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_stale_part_of_a_merged_tensor_is_found(dtype):
    model, given = merged(dtype)
    assert compare_tensors(model, given, "version=000001") is None
    for stale in given:
        other = given | {stale: given[stale] + 1e-2}
        with refuses(RuntimeError, "version=000001", f"engine's attn.qkv_proj.{stale.rsplit('.')[-1]}"):
            compare_tensors(model, other, "version=000001")


def test_a_part_of_another_rank_or_layout_is_left_to_the_probe():
    model, given = merged(torch.bfloat16)
    half = {name: tensor[: len(tensor) // 2] + 1 for name, tensor in given.items()}
    assert compare_tensors(model, half, "") is None
    model.packed_modules_mapping = {}
    assert compare_tensors(model, {name: tensor + 1 for name, tensor in given.items()}, "") is None


class Layer(nn.Module):
    """One parameter is written by its loader, one as a whole, one by rows."""

    def __init__(self):
        super().__init__()
        for name in ("loaded", "copied", "by_rows"):
            self.register_parameter(name, nn.Parameter(torch.zeros(3, 2), requires_grad=False))
        self.loaded.weight_loader = lambda param, loaded_weight: param.data.copy_(loaded_weight)

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        self.copied.copy_(weights["copied"].t())
        self.loaded.weight_loader(self.loaded, weights["loaded"])
        for row, tensor in enumerate(weights["by_rows"]):
            self.by_rows.data[row, 1:].copy_(tensor[0])
            self.by_rows[row].data[:1].copy_(tensor[1:])


@pytest.mark.slow  # it imports vLLM
@pytest.mark.parametrize("reloads", [1, 2])
def test_what_a_model_writes_past_its_loaders_arrives_in_the_same_memory(reloads):
    from vllm.model_executor.model_loader.reload import layerwise

    model = Layer()
    layerwise.record_metadata_for_reloading(model)
    places = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    for number in range(reloads):
        six = torch.arange(6.0).view(3, 2) + 10 * number
        with PastLoaders(model):
            layerwise.initialize_layerwise_reload(model)
            model.load_weights({"loaded": six, "copied": six.t().contiguous(), "by_rows": six.flip(1)})
            layerwise.finalize_layerwise_reload(model, None)
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, six), name
            assert parameter.data_ptr() == places[name]


def test_copies_of_other_tensors_are_left_alone(engine_model):
    one, meta = torch.zeros(2), torch.zeros(2, device="meta")
    with PastLoaders(engine_model):
        one.copy_(torch.ones(2))
        meta.copy_(one)
    assert one.tolist() == [1, 1]


def test_a_checkpoint_finds_the_graphs_of_another_of_its_shape(tmp_path):
    """By vLLM's hash of what they depend on: not the directory of the weights, but all of the model's configuration."""
    places = [zoo.make("qwen2", tmp_path / "first"), tmp_path / "second", tmp_path / "other"]
    for place in places[1:]:
        shutil.copytree(places[0], place)
    config = json.loads((places[2] / "config.json").read_text())
    files.write_json(places[2] / "config.json", config | {"rms_norm_eps": 2 * config["rms_norm_eps"]})
    configs = [EngineArgs(model=str(place), max_model_len=64).create_engine_config() for place in places]
    hashes = [config.compute_hash() for config in configs]
    assert hashes[0] == hashes[1] != hashes[2]
    assert OF_NO_GRAPH.keys() <= vars(configs[0].model_config).keys()
    for setting in ({"trust_remote_code": True}, {"quantization": "fp8"}):  # of which a directory may say more
        for config in configs:
            vars(config.model_config).update(setting)
        assert configs[0].compute_hash() != configs[1].compute_hash()


def test_the_class_of_a_model_is_inspected_in_this_process(tmp_path, monkeypatch):
    """Another one would import vLLM again, for ten seconds."""
    import_vllm(False)
    monkeypatch.setattr(registry._LazyRegisteredModel, "_get_cache_dir", lambda _: tmp_path)  # of what it found
    monkeypatch.setattr(subprocess, "run", None)
    assert registry.ModelRegistry.models["Qwen2ForCausalLM"].inspect_model_cls().is_text_generation_model
