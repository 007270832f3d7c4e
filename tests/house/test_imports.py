"""What a module of the user's takes in below its project directory, and that it changes identities."""

import ast
import json
from pathlib import Path

import pytest

from ouroboros.pipeline.store.digests import digest_code
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.project_imports import taken_in
from tests.golden.messages import refuses


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project directory: rewards.py takes in parsing.py, that a package, by every kind of import."""
    monkeypatch.chdir(tmp_path)
    written = {
        "mine/__init__.py": "", "mine/rewards.py": "import json\nfrom . import weights\n\n\ndef f(r, a):\n"
                                                   "    import shared.numbers\n    return {'accuracy': 1.0}\n",
        "mine/weights.py": "from .deep.inside import ONE\nimport mine.rewards\n", "mine/deep/__init__.py": "",
        "mine/deep/inside.py": "ONE = 1\n", "mine/other.py": "", "shared/numbers.py": "TWO = 2\n"}
    for name, text in written.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_every_kind_of_import_is_followed_and_libraries_are_not(project):
    assert set(taken_in(project / "mine" / "rewards.py", "mine.rewards")) == {
        "mine", "mine.rewards", "mine.weights", "mine.deep", "mine.deep.inside", "shared.numbers"}
    assert set(taken_in(project / "mine" / "deep" / "__init__.py", "mine.deep")) == {"mine", "mine.deep"}


@pytest.mark.parametrize(("edited", "counts"), [
    ("mine/rewards.py", True), ("mine/deep/inside.py", True), ("mine/__init__.py", True),
    ("shared/numbers.py", True), ("mine/other.py", False)])
def test_an_edit_of_what_is_taken_in_is_other_code(project, edited, counts):
    first = digest_code("mine.rewards:f")
    with (project / edited).open("a") as file:
        file.write("\nX = 3\n")
    assert (digest_code("mine.rewards:f") != first) == counts


def test_where_the_project_lies_does_not_count(project, monkeypatch):
    first = digest_code("mine.rewards:f")
    (project / "moved").mkdir()
    for name in ("mine", "shared"):
        (project / name).rename(project / "moved" / name)
    monkeypatch.chdir(project / "moved")
    assert digest_code("mine.rewards:f") == first


def test_an_installed_package_is_taken_as_a_whole_unread_and_nothing_beside_it(tmp_path):
    site = tmp_path / "site-packages"
    (site / "many" / "deep").mkdir(parents=True)
    for name in ("one.py", "many/__init__.py", "many/deep/inside.py"):
        (site / name).write_text("import other\nTHIS = = no Python\n")
    (site / "other.py").write_text("")
    assert set(taken_in(site / "one.py", "one")) == {"one"}
    assert set(taken_in(site / "many" / "deep" / "inside.py", "many.deep.inside")) == {"many", "many.deep.inside"}
    assert set(taken_in(site / "many" / "__init__.py", "many")) == {"many", "many.deep.inside"}


def test_of_pythons_own_a_package_is_taken_as_a_whole_too():
    found = taken_in(Path(json.__file__), "json")
    assert "json.decoder" in found
    assert {name.partition(".")[0] for name in found} == {"json"}


def test_what_has_not_changed_is_read_once(project, monkeypatch):
    read, parse = [], ast.parse
    monkeypatch.setattr(ast, "parse", lambda source: read.append(source) or parse(source))
    first = digest_code("mine.rewards:f")
    before = len(read)
    assert before >= 6
    assert digest_code("mine.rewards:f") == first
    assert len(read) == before
    (project / "mine" / "weights.py").write_text("ONE = 1\n")
    assert digest_code("mine.rewards:f") != first
    assert len(read) == before + 1


def test_a_mistake_in_a_module_that_is_taken_in_is_named(project):
    (project / "mine" / "weights.py").write_text("ONE = = 1\n")
    with refuses(ConfigError, "weights.py", "line 1"):
        digest_code("mine.rewards:f")
