"""What several tests share: settings of the default recipe, stage contexts, one tiny model."""

import logging
from pathlib import Path

import pytest

from pipeline.process import Context, namespace
from tests.configs import composed

# 64 wide, 2 layers, 2 query heads on 1 key/value head: grouped-query attention, 0.1M parameters.
TINY = ("model.init.num_hidden_layers=2", "model.init.num_key_value_heads=1", "model.max_prompt_tokens=40",
        "model.max_response_tokens=24", "explorer.rollout_model.engine_type=transformers", "model.dtype=float32")


@pytest.fixture
def settings():
    """settings("key=value", ...): the default recipe with overrides, by attribute."""
    return lambda *overrides: namespace(composed(*overrides))


@pytest.fixture
def context_of(settings):
    """context_of(directory, "key=value", ..., role=directory): a stage at work that was started by nobody."""

    def make(directory: Path, *overrides: str, **inputs: Path) -> Context:
        directory.mkdir(parents=True, exist_ok=True)
        log = logging.getLogger("tests")
        return Context("toy/one", "rft", "0123abcd", directory, settings(*overrides), inputs, log)

    return make


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A random Qwen2 model with its character tokenizer, made by the stage `model`."""
    from stages.model import work

    directory = tmp_path_factory.mktemp("store") / "model-tiny"
    directory.mkdir()
    work(Context("toy/one", "model", "tiny", directory, namespace(composed(*TINY)), {}, logging.getLogger("tests")))
    return directory


@pytest.fixture
def tiny_settings(settings):
    """The settings that go with `tiny_model`."""
    return lambda *overrides: settings(*TINY, *overrides)
