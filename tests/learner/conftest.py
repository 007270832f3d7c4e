"""What tests of training share: steps that are cut off."""

import pytest

from ouroboros.pipeline.store import tables
from ouroboros.workflows.protocol.hugging_face import import_light

import_light()  # before tests import models from transformers, which would import scipy and scikit-learn


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
