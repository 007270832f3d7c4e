"""Modules of ours by the names that they had when four packages of ours stood on the path."""

import sys
from pathlib import Path

import pytest

from ouroboros.pipeline.store import digests, project_imports
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.files import HOME
from ouroboros.pipeline.store.project_imports import OURS, bare
from ouroboros.pipeline.store.user_errors import load_dotted
from tests.golden.messages import refuses

NOW = "from ouroboros.workflows.trajectory import Trajectory\nfrom ouroboros.errors import DataError\n"
BEFORE = "from workflows.trajectory import Trajectory\nfrom pipeline.errors import DataError\n"
F = "def f(task): ...\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    elsewhere = [place for place in sys.path if Path(place or ".").resolve() != HOME]  # pytest's, for `tests`
    monkeypatch.setattr(sys, "path", [str(tmp_path), *elsewhere])
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        monkeypatch.delitem(sys.modules, name)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]


@pytest.mark.parametrize(("text", "expected"), [
    ("ouroboros.workflows.environments.shop:Shop", "workflows.environments.shop:Shop"),
    ("from ouroboros.errors import DataError", "from pipeline.errors import DataError"),
    ("ouroboros.tables", "ouroboros.tables"), ("mine.ouroboros.workflows.x:f", "mine.ouroboros.workflows.x:f"),
    ("ouroboros.workflowsome:f", "ouroboros.workflowsome:f")])
def test_identities_have_names_without_the_prefix(text, expected):
    assert bare({text: [text, 3]}) == {expected: [expected, 3]}


@pytest.mark.parametrize(("line", "before", "now"), [
    ("from workflows.trajectory import Trajectory", "workflows.trajectory", "ouroboros.workflows.trajectory"),
    ("from workflows import trajectory", "workflows.trajectory", "ouroboros.workflows.trajectory"),
    ("import operators.kl as kl", "operators.kl", "ouroboros.operators.kl"),
    ("def g():\n    from pipeline.errors import DataError", "pipeline.errors", "ouroboros.errors")])
def test_a_file_that_imports_by_a_name_of_before_is_refused_with_the_new_one(project, line, before, now):
    (project / "mine.py").write_text(f"{line}\ndef f(response, answer): ...\n")
    with refuses(ConfigError, "mine.py", before, now):
        digests.digest_code("mine:f")


def test_a_setting_with_a_name_of_before_is_refused_with_the_new_one(project):
    with refuses(ConfigError, "ouroboros.workflows.environments.shop:Shop"):
        digests.code_files("workflows.environments.shop:Shop")


def test_a_finished_stage_loads_what_its_settings_named_before(project):
    assert load_dotted("workflows.environments.shop:Shop").__module__ == "ouroboros.workflows.environments.shop"
    assert "workflows" not in sys.modules


def test_a_package_of_the_project_may_have_a_name_of_ours(project):
    (project / "workflows").mkdir()
    (project / "workflows" / "mine.py").write_text("import workflows.parts\ndef f(response, answer):\n    return 1.0\n")
    (project / "workflows" / "parts.py").write_text("")
    assert list(digests.code_files("workflows.mine:f").values()) == [
        project / "workflows" / "mine.py", project / "workflows" / "parts.py"]
    assert load_dotted("workflows.mine:f")("", "") == 1.0


def test_a_file_keeps_its_digest_when_its_imports_get_the_new_names(project, monkeypatch):
    (project / "mine.py").write_text(NOW + F)
    now = digests.digest_code("mine:f")
    monkeypatch.setattr(project_imports, "new_name", lambda *_: None)  # as when it was made
    (project / "mine.py").write_text(BEFORE + F)
    assert digests.digest_code("mine:f") == now


def test_a_package_that_cannot_be_read_before_says_the_new_name_when_it_is_imported(project):
    (project / "old.py").write_text("from workflows.trajectory import Trajectory\n")
    with refuses(ConfigError, "ouroboros.workflows"):
        load_dotted("old:f")
