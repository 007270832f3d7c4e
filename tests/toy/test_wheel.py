"""The wheel, installed in an environment of its own whose other packages are those of this one."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from ouroboros.pipeline.store.files import HOME
from ouroboros.pipeline.store.project_imports import OURS

pytestmark = pytest.mark.slow
ELSEWHERE = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}


def call(*words, cwd, **variables):
    done = subprocess.run([*map(str, words)], cwd=cwd, capture_output=True, text=True, env=ELSEWHERE | variables,
                          check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    place = tmp_path_factory.mktemp("dist")
    pip = [sys.executable, "-m", "pip"]
    call(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", place, HOME, cwd=place)
    return next(place.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The directory of the environment's commands."""
    place = tmp_path_factory.mktemp("installed")
    call(sys.executable, "-m", "venv", "--without-pip", place, cwd=place)
    python = place / "bin" / "python"
    call(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel, cwd=place)
    packages = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).strip())
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")  # its own .pth files are not read
    return python.parent


@pytest.fixture
def project(installed, tmp_path):
    call(installed / "ouro", "init", "mine", "--template", "math", cwd=tmp_path)
    return tmp_path / "mine"


def test_every_file_of_the_packages_is_in_the_wheel(wheel):
    tracked = call("git", "ls-files", *OURS, "conf", "profiles", "Snakefile", "requirements.lock", cwd=HOME).split()
    assert {f"ouroboros/{name}" for name in tracked} <= {*zipfile.ZipFile(wheel).namelist()}


def test_wheel_editable_install_and_checkout_plan_the_same_stages(installed, project):
    checkout = call(sys.executable, "-P", "-m", "ouroboros", "stages", cwd=project, PYTHONPATH=str(HOME / "src"))
    editable = call(Path(sys.executable).parent / "ouro", "stages", cwd=project)
    assert _directories(call(installed / "ouro", "stages", cwd=project)) == _directories(checkout)
    assert _directories(editable) == _directories(checkout) != []


def _directories(shown):
    return [line for line in shown.splitlines() if line.split()[:1] == ["directory"]]


def test_stages_of_the_wheel_run_through_snakemake_and_by_hand(installed, project):
    shown = _directories(call(installed / "ouro", "stages", "--write", cwd=project))
    first, second = [line.split()[1] for line in shown if "store/tasks" in line][:2]
    told = subprocess.run([installed / "python", "-X", "importtime", "-m", "ouroboros.stages.tasks", first],
                          cwd=project, env=ELSEWHERE, capture_output=True, text=True, check=True).stderr
    loaded = {line.rpartition("|")[2].strip() for line in told.splitlines() if line.startswith("import time:")}
    assert "ouroboros.stages.tasks" in loaded or "ouroboros.stages" in loaded
    assert not [name for name in loaded if name.partition(".")[0] in OURS]  # no module by two names
    assert (project / first / "manifest.json").exists()
    call(installed / "ouro", "run", "--", f"{second}/manifest.json", cwd=project)
    assert (project / second / "manifest.json").exists()


def test_locks_of_the_wheel_are_those_of_the_checkout(installed, tmp_path):
    for name, lock in (("cpu", "requirements.lock"), ("gpu", "requirements-gpu.lock")):
        path = Path(call(installed / "python", "-m", "ouroboros", "lock", name, cwd=tmp_path).strip())
        assert path.read_bytes() == (HOME / lock).read_bytes()
