"""A project with modules of its own."""

import pytest


@pytest.fixture
def project(tmp_path, monkeypatch, request):
    """The directory of a project, which is the current one, with the files of the test module's MODULES."""
    for name, text in request.module.MODULES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path
