"""The transformers engine on the tiny random model; a directory whose path a socket may have."""

import tempfile
from pathlib import Path

import pytest

from ouroboros.workflows.engines.open import open_engine
from ouroboros.workflows.protocol.prompts import load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    return load_tokenizer(tiny_model)


@pytest.fixture
def engine(tiny_model, tiny_settings, tokenizer):
    return open_engine(tiny_model, tiny_settings(), [tokenizer.eos_token_id])


@pytest.fixture
def short():
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)
