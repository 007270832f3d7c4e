"""A project with modules of the user, and runs of which no data is read."""

import pytest

from ouroboros.pipeline.check import samples
from tests.sizes import answered


@pytest.fixture
def project(tmp_path, monkeypatch, request):
    """The directory of a project, which is the current one, with the files of the test module's MODULES."""
    for name, text in request.module.MODULES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def without_preview(monkeypatch):
    """No process samples the data of a run and counts its models; these have the sizes of tests/sizes.py."""
    monkeypatch.setattr(samples, "preview", lambda config, stages, models: answered(models))
