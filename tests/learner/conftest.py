"""A process group of one, for tests that train with real DeepSpeed."""

import pytest
import torch

from ouroboros.pipeline.store import tables
from ouroboros.stages.learner.engine.process import Process
from ouroboros.workflows.protocol.hugging_face import import_light

import_light()  # before tests import models from transformers, which would import scipy and scikit-learn

ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
         "MASTER_PORT": "0"}


@pytest.fixture(scope="session")
def process():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ALONE.items():
            patch.setenv(name, value)
        started = Process.start(1)
        yield started
        if torch.distributed.is_initialized():  # a vLLM engine in the same process ends all groups when it is closed
            started.stop()


@pytest.fixture
def cut_off(monkeypatch):
    """cut_off(directory, step, work): calls `work`, which is interrupted before it writes the record of that step."""

    def run(directory, step: int, work) -> None:
        write = tables.write

        def until(path, *arguments):
            if path == tables.step_file(directory, "steps", step):
                raise KeyboardInterrupt
            write(path, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(tables, "write", until)
            with pytest.raises(KeyboardInterrupt):
                work()

    return run
