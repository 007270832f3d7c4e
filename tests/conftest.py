"""What several tests share: settings of the default recipe, stage contexts, one tiny model."""

import gc
import logging
import os
from pathlib import Path

import pytest

from pipeline.job.context import Context, namespace
from pipeline.store.secret_names import secret_variables
from tests.configs import TINY, overridden

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test with ids has a hub of its own (tests/hub.py)
gc.set_threshold(200_000, 20, 20)  # torch's hundred thousands of objects stay: walking them took a tenth of the time


@pytest.fixture(autouse=True)
def _secrets_of_this_test():
    """A process reads its secret variables once; a test sets its own."""
    secret_variables.cache_clear()


@pytest.fixture
def settings():
    """settings("key=value", ...): the default recipe with overrides, by attribute."""
    return lambda *overrides: namespace(overridden(*overrides))


@pytest.fixture
def context_of(settings):
    """context_of(directory, "key=value", ..., role=directory): a stage at work that was started by nobody."""

    def make(directory: Path, *overrides: str, **inputs: Path) -> Context:
        directory.mkdir(parents=True, exist_ok=True)
        log = logging.getLogger("tests")
        return Context("toy/one", "rft", "0123abcd", directory, settings(*overrides), inputs, log)

    return make


@pytest.fixture
def environment_kept():
    """Undoes what a stage in this process does to its environment variables and CPU cores."""
    cores, variables = os.sched_getaffinity(0), dict(os.environ)
    yield
    os.sched_setaffinity(0, cores)
    os.environ.clear()
    os.environ.update(variables)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A random Qwen2 model with its character tokenizer, made by the stage `model`."""
    import torch

    from stages.model import work

    torch.set_num_threads(1)  # two threads that wait for each other are slower when the machine is busy
    directory = tmp_path_factory.mktemp("store") / "model-tiny"
    directory.mkdir()
    work(Context("toy/one", "model", "tiny", directory, namespace(overridden(*TINY)), {}, logging.getLogger("tests")))
    return directory


@pytest.fixture
def tiny_settings(settings):
    """The settings that go with `tiny_model`."""
    return lambda *overrides: settings(*TINY, *overrides)
