"""A cluster for each file of this directory, and `ouro run --profile slurm` on it."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ouroboros.pipeline.store import files
from tests.slurm import cluster as slurm
from tests.toy.conftest import REPOSITORY, small

QUICK = ("explorer.rollout_model.engine_type=transformers", "cluster.gpu_per_node=0",
         "buffer.explorer_input.eval_tasksets=[]", "cluster.slurm.runtime=10")
ONLY_SFT = ("--until", "sft")
BEGIN_SECONDS, END_SECONDS = 900, 600  # at most, until a run has submitted or done something, and until it has ended


def pytest_collection_modifyitems(items):
    for item in items:
        if "/tests/slurm/" in str(item.path):
            item.add_marker(pytest.mark.slurm)
            reason = slurm.missing("accounting" in _settings(item.module))
            if reason and "cluster" in item.fixturenames:
                item.add_marker(pytest.mark.skip(reason=reason))


def _settings(module) -> dict:
    return getattr(module, "CLUSTER", {})


@pytest.fixture(scope="module")
def cluster(request, tmp_path_factory):
    with slurm.cluster(tmp_path_factory.mktemp("slurm"), **_settings(request.module)) as one:
        yield one


@pytest.fixture(scope="session")
def upstream(tmp_path_factory) -> Path:
    """A root with the complete stages before sft, which run without SLURM."""
    made = tmp_path_factory.mktemp("upstream")
    done = finish(made, options=(), extra=("--until", "curate", "model"))
    assert done.returncode == 0, done.stderr
    return made


def continued(upstream: Path, place: Path) -> Path:
    """A root in which sft comes next."""
    for complete in upstream.glob(f"store/*/{files.MANIFEST}"):
        shutil.copytree(complete.parent, place / "store" / complete.parent.name)
    return place


@pytest.fixture
def root(upstream, tmp_path) -> Path:
    return continued(upstream, tmp_path)


def ouro(root: Path, *overrides: str, options: tuple[str, ...] = ("--profile", "slurm"), extra=()) -> list[str]:
    """The command of a small run."""
    given = {override.partition("=")[0] for override in overrides}
    quick = (one for one in QUICK if one.partition("=")[0] not in given)
    words = small(*quick, f"checkpoint_root_dir={root}", *overrides)
    return [sys.executable, "-m", "ouroboros", "run", *options, *words, *(["--", *extra] if extra else [])]


def finish(root: Path, *overrides: str, **more) -> subprocess.CompletedProcess:
    """Runs the command to its end."""
    return subprocess.run(ouro(root, *overrides, **more), cwd=REPOSITORY, capture_output=True, text=True, check=False)


BEGUN: list[subprocess.Popen] = []


def begin(command: list[str], log: Path) -> subprocess.Popen:
    """Starts the command, which ends with the test."""
    with log.open("ab") as out:
        BEGUN.append(subprocess.Popen(command, cwd=REPOSITORY, stdout=out, stderr=out, start_new_session=True,
                                      env=os.environ | {"PYTHONPATH": str(REPOSITORY / "src")}))
    return BEGUN[-1]


@pytest.fixture(autouse=True)
def _no_process_is_left():
    yield
    while BEGUN:
        BEGUN[-1].terminate()
        BEGUN.pop().wait(END_SECONDS)


def until(holds, seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.5)


def cancelled_while_pending(cluster: slurm.Cluster, root: Path) -> str:
    """Starts a run on a cluster without a free node and cancels its first job; returns what the failed run printed."""
    cluster.fill()
    try:
        process = begin(ouro(root, extra=ONLY_SFT), root / "out")
        until(lambda: cluster.jobs("PENDING"), BEGIN_SECONDS, "a pending job")
        cluster.ask("scancel", *cluster.jobs("PENDING"))
        assert process.wait(END_SECONDS) != 0
    finally:
        cluster.empty()
    return (root / "out").read_text()


def stage(root: Path, name: str) -> Path:
    (found,) = root.glob(f"store/{name}-*")
    return found


def manifest(root: Path, name: str) -> dict:
    return files.read_json(stage(root, name) / files.MANIFEST)


def steps(root: Path) -> int:
    return len(list(root.glob("store/sft-*/steps/*.parquet")))
