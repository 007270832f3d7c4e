"""The set-up by make, with a Python that installs nothing: what follows a build of torch that does not import."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
case "$*" in
  "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  "-m pip install --quiet --no-compile"*) test -e torch || echo "$BUILD" > torch ;;
  *uninstall*torch) rm torch ;;
  "-c import torch") grep -q cpu torch || { echo "ImportError: libcudnn.so.9: cannot open" >&2; exit 1; } ;;
esac
"""


def set_up(root: Path, build: str) -> subprocess.CompletedProcess:
    return subprocess.run(["make", "setup", "PYTHON=./python"], cwd=root, env={"BUILD": build, "PATH": "/usr/bin:/bin"},
                          capture_output=True, text=True)


def test_the_cuda_build_of_torch_gives_way_to_the_one_for_cpus(tmp_path):
    """pip keeps a version that is installed, so make removes a torch that does not import: a second try can succeed."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    first = set_up(tmp_path, "cuda")
    assert first.returncode != 0
    assert "libcudnn.so.9" in first.stdout
    assert not (tmp_path / ".venv/.ready").exists()
    assert set_up(tmp_path, "cpu").returncode == 0
    assert (tmp_path / ".venv/.ready").exists()
