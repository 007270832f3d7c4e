"""torchvision's CUDA wheel next to a CPU build of torch: what stops its import, and what lets it go on."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace

import pytest

from ouroboros.pipeline.job import torchvision

FOUND = importlib.util.find_spec("torchvision")
RESIZED = ("import torch; from torchvision.transforms.v2 import functional as F; "
           "print(*F.resize(torch.zeros(3, 8, 8), [4, 6]).shape)")


def python(*words: str, path: str = "") -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *words], env=os.environ | {"PYTHONPATH": path}, capture_output=True,
                          text=True, check=False)


@pytest.mark.skipif(FOUND is None, reason="needs torchvision")
def test_the_wheel_of_the_index_lacks_two_schemas_until_they_are_defined(tmp_path):
    """Where the first import succeeds, this release needs `pipeline/job/torchvision.py` no longer."""
    package, path = Path(FOUND.origin).parent, str(tmp_path)
    if "+cu" not in (package / "version.py").read_text():
        pytest.skip("a CPU build has its operators")
    copytree(package, tmp_path / "torchvision", symlinks=True)
    file = tmp_path / "torchvision" / "extension.py"
    file.write_text(file.read_text().replace(torchvision.SCHEMAS, ""))
    before = python("-c", RESIZED, path=path)
    assert (before.returncode, "torchvision::nms" in before.stderr) == (1, True)
    assert python("-m", "ouroboros.pipeline.job.torchvision", path=path).returncode == 0
    assert python("-c", RESIZED, path=path).stdout.split() == ["3", "4", "6"]
    assert file.read_text().count(torchvision.SCHEMAS) == 1


@pytest.mark.skipif(FOUND is None, reason="needs torchvision")
def test_the_installed_one_can_be_imported():
    assert python("-c", "import torchvision").returncode == 0


@pytest.mark.parametrize(("cuda", "release", "needs"), [
    (False, "0.28.0+cu130", True), (True, "0.28.0+cu130", False), (False, "0.28.0+cpu", False),
    (False, "0.28.0", False),  # the index's, for a Mac
    (False, None, False)])  # a directory without files
def test_a_cuda_build_without_cuda_needs_the_schemas(monkeypatch, tmp_path, cuda, release, needs):
    (tmp_path / "version.py").write_text(f"__version__ = '{release}'\n")
    (tmp_path / "extension.py").touch()
    found = SimpleNamespace(origin=release and str(tmp_path / "__init__.py"))
    monkeypatch.setattr(torchvision.importlib.util, "find_spec", lambda _: found)
    monkeypatch.setattr(torchvision, "torch_has_cuda", lambda: cuda)
    assert torchvision.unmended() == (tmp_path / "extension.py" if needs else None)
