"""Where processes of ours find modules: ours are in one package, and every other name is the user's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ouroboros.pipeline.store import files, launch


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The current directory, with a module of the user, and another on PYTHONPATH."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'there'}{os.pathsep}")
    (tmp_path / "here" / "mine.py").write_text("")
    return tmp_path


def test_the_project_comes_first_and_a_path_that_is_handed_on_does_not_grow(project, monkeypatch):
    for _ in range(2):
        assert launch.python_path().split(os.pathsep) == [str(project / "here"), str(project / "there")]
        monkeypatch.setenv("PYTHONPATH", launch.python_path())


@pytest.mark.parametrize("name", ["pipeline.py", "stages.py", "operators.py", "workflows/__init__.py"])
def test_a_package_of_the_user_may_have_any_of_our_names(project, name):
    mine = project / "here" / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("")
    package = mine.parent.name if "/" in name else mine.stem
    code = (f"import {package}, ouroboros.{package}, sys; print({package}.__file__, ouroboros.{package}.__file__)")
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True,
                          env=launch.environment())
    users, ours = map(Path, done.stdout.split())
    assert users == mine
    assert ours.resolve() == files.HOME / package / "__init__.py"
    assert [*launch.hidden_modules()] == []


@pytest.mark.parametrize("package", ["pipeline", "stages", "operators", "workflows"])
def test_no_other_name_of_ours_stands_on_the_path_of_a_program(project, package):
    done = subprocess.run([sys.executable, "-P", "-c", f"import ouroboros, {package}"], capture_output=True, text=True,
                          check=False, env=launch.environment())
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: No module named '{package}'"


def test_modules_in_the_place_of_pythons_own_or_a_librarys_are_named(project):
    for name in ("types.py", "torch.py", "tools.py", "reward.py", "test.py", "ouroboros.py"):
        Path(name).touch()
    assert [one.partition(" ")[0].rpartition("/")[2] for one in launch.hidden_modules()] == [
        "ouroboros.py", "torch.py", "types.py"]


def test_another_checkout_is_one_problem(project):
    for name in ("pipeline/__init__.py", "pipeline/store/launch.py", "stages/__init__.py"):
        (project / "here" / name).parent.mkdir(parents=True, exist_ok=True)
        (project / "here" / name).write_text("")
    assert len([*launch.hidden_modules()]) == 1
