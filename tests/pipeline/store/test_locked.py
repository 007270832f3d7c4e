"""Locks of environments: what uv is asked for, which lock counts, and where it is installed."""

import sys

import pytest

from ouroboros.pipeline.plan.packaged_tasks import with_tasks
from ouroboros.pipeline.store import locked
from ouroboros.pipeline.store.errors import ConfigError, DataError, StageError
from tests.configs import changed
from tests.golden.messages import refuses
from tests.plans import identities

# in place of uv: what it is asked for is written down, and a lock is what it is given
UV = """#!/bin/sh
echo "$@" >> asked
case "$1 $2" in
  "pip compile") sed 's/$/==1.0 --hash=sha256:00/' ;;
  "pip sync") test ! -e broken || { echo "no such hash" >&2; exit 2; } ;;
  venv*) mkdir -p "$5/bin" ;;
esac
"""
SET = "buffer.explorer_input.taskset"


@pytest.fixture
def uv(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").write_text(UV)
    (tmp_path / "bin" / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_lock_is_installed_once_under_its_hash(uv):
    path = locked.lock("mine", ["one"])
    assert path.read_text().endswith(": one\none==1.0 --hash=sha256:00")
    place = locked.install("mine", "root")
    assert place == uv / "root" / "store" / ".environments" / locked.digest("mine")
    assert locked.interpreter(locked.installed("mine", "root"), "root") == place / "bin" / "python"
    calls = (uv / "asked").read_text().count("\n")
    assert locked.install("mine", "root") == place
    assert (uv / "asked").read_text().count("\n") == calls
    assert ["--require-hashes" in one for one in (uv / "asked").read_text().splitlines()] == [False, False, True]


@pytest.mark.parametrize("name", ["../b", "..", "", ".", "/a", "a/b", "with space"])
def test_a_name_is_no_path(uv, name):
    with refuses(ConfigError, "name"):
        locked.lock(name, ["one"])
    assert not (uv / "asked").exists()


def test_a_requirement_without_hashes_locks_nothing(uv):
    (uv / "bin" / "uv").write_text("#!/bin/sh\nprintf 'one==1.0 \\\\\\n    --hash=sha256:00\\n./mine\\n'\n")
    with refuses(ConfigError, "./mine", "wheel"):
        locked.lock("mine", ["./mine"])
    assert not (uv / "environments").exists()


def test_another_lock_is_another_folder(uv):
    locked.lock("mine", ["one"])
    first = locked.digest("mine")
    locked.lock("mine", ["two"])
    assert locked.digest("mine") != first
    with refuses(DataError, locked.digest("mine")):
        locked.installed("mine", "root")


def test_what_uv_cannot_install_is_not_complete(uv):
    locked.lock("mine", ["one"])
    (uv / "broken").touch()
    with refuses(StageError, "no such hash"):
        locked.install("mine", "root")
    with pytest.raises(DataError):
        locked.installed("mine", "root")


def test_a_lock_of_another_python_and_none_are_refused(uv):
    with refuses(DataError, "mine"):
        locked.digest("mine")
    path = locked.lock("mine", ["one"])
    path.write_text(path.read_text().replace(locked.PYTHON, "3.9"))
    with pytest.raises(DataError, match="{}.{}".format(*sys.version_info)):
        locked.digest("mine")


def test_without_uv_the_sentence_has_the_command(uv, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with refuses(ConfigError, "uv"):
        locked.lock("mine", ["one"])


def test_a_taskset_of_an_environment_that_is_not_there_is_a_problem_of_its_path(uv):
    _, problems = with_tasks(changed({f"{SET}.path": "verifiers://mine/sums", "checkpoint_root_dir": str(uv)}))
    assert [one.startswith(f"{SET}.path=") and "mine" in one for one in problems] == [True]


def test_the_lock_of_a_programs_packages_is_in_the_identity_of_what_explores(uv, tmp_path):
    own = {f"{SET}.default_workflow_type": "harness_agent",
           f"{SET}.workflow_args": {"command": "true", "locked_environment": "mine"}}
    found = []
    for requirement in ("one", "two"):
        locked.lock("mine", [requirement])
        locked.install("mine", tmp_path)
        found.append(identities(tmp_path, own))
    assert {name for name in found[0] if found[0][name] != found[1][name]} == {"rft", "evaluate_rft", "report"}
