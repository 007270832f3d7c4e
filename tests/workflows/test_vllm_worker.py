"""Tensors of an engine against the file that it was told to load."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from workflows.engines.vllm_worker import compare_tensors


@pytest.fixture
def engine_model():
    torch.manual_seed(0)
    return nn.ModuleDict({"norm": nn.Linear(3, 2), "packed": nn.Linear(3, 4, bias=False)}).to(torch.bfloat16)


def saved(tmp_path, **changed):
    """A float32 file with the names of a checkpoint."""
    path = tmp_path / "model.safetensors"
    save_file(changed, path)
    return str(path)


def test_the_same_tensors_pass_whatever_the_file_calls_or_shapes_otherwise(engine_model, tmp_path):
    same = engine_model["norm"].weight.data.float()
    given = saved(tmp_path, **{
        "norm.weight": same, "packed.weight": torch.ones(8, 3), "elsewhere.weight": torch.ones(2)})
    assert compare_tensors(engine_model, given) is None


def test_a_tensor_of_older_weights_is_named(engine_model, tmp_path):
    other = engine_model["norm"].weight.data.float() * 1.01
    with pytest.raises(RuntimeError, match=r"model\.safetensors was loaded, but the engine's norm\.weight holds"):
        compare_tensors(engine_model, saved(tmp_path, **{"norm.weight": other}))


def test_float32_is_left_to_the_probe(engine_model, tmp_path):
    assert compare_tensors(engine_model.float(), saved(tmp_path, **{"norm.weight": torch.zeros(2, 3)})) is None
