"""Tensors of an engine against the file that it was told to load."""

import pytest
import torch
from torch import nn

from workflows.engines.vllm_worker import compare_tensors


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
    with pytest.raises(RuntimeError, match=r"version=000001 was loaded, but the engine's norm\.weight holds"):
        compare_tensors(engine_model, {"norm.weight": other}, "version=000001")


def test_float32_is_left_to_the_probe(engine_model):
    assert compare_tensors(engine_model.float(), {"norm.weight": torch.zeros(2, 3)}, "") is None
