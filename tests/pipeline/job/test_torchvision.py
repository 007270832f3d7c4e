"""torchvision's CUDA wheel next to a CPU build of torch: what stops its import, and what lets it go on."""

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from shutil import copytree

import pytest

from ouroboros.pipeline.job import torchvision

RESIZED = ("import torch; from torchvision.transforms.v2 import functional as F; "
           "print(*F.resize(torch.zeros(3, 8, 8), [4, 6]).shape)")


@pytest.mark.skipif("+cpu" in version("torchvision"), reason="PyTorch's CPU wheel has its operators")
def test_the_wheel_of_the_index_lacks_two_schemas_until_they_are_defined(tmp_path):
    """Where the first import succeeds, this release needs `pipeline/job/torchvision.py` no longer."""
    package = Path(importlib.util.find_spec("torchvision").origin).parent
    copytree(package, tmp_path / "torchvision", symlinks=True)
    file = tmp_path / "torchvision" / "extension.py"
    file.write_text(file.read_text().replace(torchvision.SCHEMAS, ""))

    def python(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, *words], env=os.environ | {"PYTHONPATH": str(tmp_path)},
                              capture_output=True, text=True, check=False)

    before = python("-c", RESIZED)
    assert (before.returncode, "torchvision::nms" in before.stderr) == (1, True)
    assert python("-m", "ouroboros.pipeline.job.torchvision").returncode == 0
    assert python("-c", RESIZED).stdout.split() == ["3", "4", "6"]
    assert file.read_text().count(torchvision.SCHEMAS) == 1


def test_the_installed_one_can_be_imported():
    assert torchvision.unmended() is None


@pytest.mark.parametrize(("cuda", "release"), [(True, "0.28.0"), (False, "0.28.0+cpu")])
def test_other_builds_need_nothing(monkeypatch, cuda, release):
    monkeypatch.setattr(torchvision, "torch_has_cuda", lambda: cuda)
    monkeypatch.setattr(torchvision, "version", lambda _: release)
    monkeypatch.setattr(torchvision, "SCHEMAS", "lacking")
    assert torchvision.unmended() is None
