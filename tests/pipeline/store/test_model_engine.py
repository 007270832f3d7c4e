"""Which models the installed vLLM runs: those that it lists, and others of attention alone."""

import pytest

from ouroboros.pipeline.store import model_engine

LISTED = frozenset({"LlamaForCausalLM", "Qwen3NextForCausalLM", "Gemma3ForConditionalGeneration"})
READ = model_engine._listed
BAMBA = {"model_type": "bamba", "architectures": ["BambaForCausalLM"]}


@pytest.fixture(autouse=True)
def listed(monkeypatch):
    monkeypatch.setattr(model_engine, "_listed", lambda: LISTED)


LLAMA = {"architectures": ["LlamaForCausalLM"]}


@pytest.mark.parametrize(("config", "runs"), [
    ({"model_type": "llama", **LLAMA}, True),
    ({"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"]}, True),  # a hybrid with code of vLLM's own
    ({"model_type": "phi", "architectures": ["PhiForCausalLM"]}, True),  # by the transformers backend
    ({"model_type": "bamba"}, True), (BAMBA, False),  # a hybrid that it does not list
    # what it reads otherwise than transformers
    ({"model_type": "lfm2", "conv_dim": 64, **LLAMA}, False),
    ({"model_type": "lfm2", "conv_dim": 64, "block_dim": 64, **LLAMA}, True),
    ({"model_type": "cohere2", "sliding_window": 100, **LLAMA}, False),
    ({"model_type": "cohere2", "sliding_window": 128, **LLAMA}, True)], ids=str)
def test_which_models_it_runs(config, runs):
    problem = model_engine.engine_problem(config, 128)
    assert (problem is None) == runs
    assert runs or problem.key == "explorer.rollout_model.engine_type"
    assert config is not BAMBA or "BambaForCausalLM" in problem


def test_without_vllm_nothing_is_known(monkeypatch):
    monkeypatch.setattr(model_engine, "_listed", frozenset)
    assert model_engine.engine_problem(BAMBA, 128) is None


@pytest.mark.parametrize("there", [False, True])
def test_a_tower_needs_torchvision(monkeypatch, there):
    found = model_engine.importlib.util.find_spec
    monkeypatch.setattr(model_engine.importlib.util, "find_spec",
                        lambda name: (object() if there else None) if name == "torchvision" else found(name))
    config = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
              "text_config": {"model_type": "gemma3_text"}}
    assert (model_engine.engine_problem(config, 128) is None) == there


def test_the_list_of_the_installed_vllm_is_found():
    assert {"Qwen2ForCausalLM", "LlamaForCausalLM"} <= READ()
