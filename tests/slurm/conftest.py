"""A cluster for the tests of this directory, and `ouro run --profile slurm` on it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.store import files
from tests.slurm import cluster as slurm
from tests.toy.conftest import REPOSITORY, small

QUICK = ("explorer.rollout_model.engine_type=transformers", "cluster.gpu_per_node=0",
         "buffer.explorer_input.eval_tasksets=[]", "cluster.slurm.runtime=10")


def pytest_collection_modifyitems(items):
    reason = slurm.missing()
    for item in items:
        if "/tests/slurm/" in str(item.path):
            item.add_marker(pytest.mark.slurm)
            if reason and "cluster" in item.fixturenames:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    with slurm.cluster(tmp_path_factory.mktemp("slurm")) as one:
        yield one


def ouro(root: Path, *overrides: str, options: tuple[str, ...] = ("--profile", "slurm"), extra=()) -> list[str]:
    """The command of a small run."""
    given = {override.partition("=")[0] for override in overrides}
    quick = (one for one in QUICK if one.partition("=")[0] not in given)
    words = small(*quick, f"checkpoint_root_dir={root}", *overrides)
    return [sys.executable, "-m", "pipeline.cli", "run", *options, *words, *(["--", *extra] if extra else [])]


def begin(command: list[str], log: Path) -> subprocess.Popen:
    with log.open("ab") as out:
        return subprocess.Popen(command, cwd=REPOSITORY, stdout=out, stderr=out, start_new_session=True,
                                env=os.environ | {"PYTHONPATH": str(REPOSITORY)})


def stage(root: Path, name: str) -> Path:
    (found,) = root.glob(f"store/{name}-*")
    return found


def manifest(root: Path, name: str) -> dict:
    return files.read_json(stage(root, name) / files.MANIFEST)
