"""Where processes of ours find modules: our four packages before anything of the user's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.store import launch
from pipeline.store.files import HOME

USER = "import sys\nprint(sys.argv)\nraise SystemExit('the module of the user')\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The current directory, with a module of the user, and another on PYTHONPATH."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'there'}{os.pathsep}")
    (tmp_path / "here" / "mine.py").write_text("")
    return tmp_path


def test_ours_come_first_and_then_the_project(project):
    assert launch.python_path().split(os.pathsep) == [str(HOME), str(project / "here"), str(project / "there")]


def test_a_path_that_is_handed_on_does_not_grow(project, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", launch.python_path())
    assert launch.python_path().count(os.pathsep) == 2


@pytest.mark.parametrize("name", ["pipeline.py", "stages.py", "workflows/__init__.py"])
def test_no_module_of_the_user_replaces_ours(project, name):
    shadow = project / "here" / name
    shadow.parent.mkdir(exist_ok=True)
    shadow.write_text(USER)
    package = shadow.parent.name if "/" in name else shadow.stem
    code = f"import {package}, mine; print({package}.__file__, mine.__file__)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True,
                          env=os.environ | {"PYTHONPATH": launch.python_path()})
    ours, users = map(Path, done.stdout.split())
    assert ours.is_relative_to(HOME)
    assert users == project / "here" / "mine.py"
    (problem,) = launch.hidden_modules()
    assert str(shadow) in problem


def test_modules_with_other_names_and_folders_of_data_are_no_problem(project):
    (project / "here" / "stages").mkdir()
    (project / "here" / "stages" / "notes.txt").write_text("")
    assert [*launch.hidden_modules()] == []
    (project / "there" / "operators.py").write_text("")
    assert len([*launch.hidden_modules()]) == 1


def test_modules_in_the_place_of_pythons_own_or_a_librarys_are_named(project):
    for name in ("types.py", "torch.py", "tools.py", "reward.py", "test.py"):
        Path(name).touch()
    assert [one.partition(" ")[0].rpartition("/")[2] for one in launch.hidden_modules()] == ["torch.py", "types.py"]


def test_packages_of_a_checkout_hide_only_what_the_recipe_names(project):
    (project / "here" / "tests").mkdir()
    (project / "here" / "tests" / "__init__.py").write_text("")
    assert [*launch.hidden_modules(["mine:score"])] == []
    assert len([*launch.hidden_modules(["tests.rewards:score"])]) == 1


def test_another_checkout_is_one_problem(project):
    for name in ("pipeline/__init__.py", "pipeline/store/launch.py", "stages/__init__.py"):
        (project / "here" / name).parent.mkdir(parents=True, exist_ok=True)
        (project / "here" / name).write_text("")
    assert len([*launch.hidden_modules()]) == 1
