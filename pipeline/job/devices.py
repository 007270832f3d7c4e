"""The GPUs of a run: visible on this machine, declared in the configuration, and required by a stage.

Determined without importing torch, so that planning is fast and works on a machine without torch. As a command it
prints this machine's, and what to run first (`make setup-gpu`).
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

NAME = re.compile(r"\d+|(GPU|MIG)-\S+")  # a GPU name in CUDA_VISIBLE_DEVICES
FIRST = ((8, 75, "recipe=gsm8k_7b"), (2, 22, "recipe=gsm8k mode=both"), (1, 22, "recipe=gsm8k mode=colocate"),
         (1, 0, "mode=colocate"))  # at least so many GPUs of so many GiB: what `ouro run` begins with there


@dataclass(frozen=True)
class Gpus:
    """The GPUs available to a run.

    count: None when GPUs are declared without a number. gib: memory of each; None when unknown. declared: whether the
    configuration declares them; otherwise they are those visible on this machine.
    """

    count: int | None
    gib: float | None
    declared: bool

    @cached_property
    def any(self) -> bool:
        return self.count != 0


def torch_has_cuda() -> bool:
    """Returns whether the installed torch supports GPUs, without importing it."""
    found = importlib.util.find_spec("torch")
    return bool(found and found.origin and (Path(found.origin).parent / "lib" / "libtorch_cuda.so").exists())


def visible_gpus(at_most: int | None) -> list[str]:
    """Returns the GPUs in CUDA_VISIBLE_DEVICES, or all that NVIDIA's driver lists; none for a CPU build of torch.

    at_most: `cluster.gpu_per_node`, the number of GPUs to use, from the first; None: all. As in CUDA, the first invalid
    name, such as -1, ends the list.
    """
    if not torch_has_cuda():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        names = takewhile(NAME.fullmatch, (name.strip() for name in named.split(",")))
        found = list(dict.fromkeys(names))
    else:
        found = [str(index) for index in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]
    return found[:at_most]


def gpus_of_machine(per_node: int | None) -> int:
    """Returns the GPUs per machine for stages: `cluster.gpu_per_node`, else those visible here."""
    return len(visible_gpus(None)) if per_node is None else per_node


def planned_gpus(cluster, here: bool = True) -> Gpus:
    """Returns what the section `cluster` declares, completed by what is visible here.

    here: whether the run is for this machine; otherwise its visible GPUs are irrelevant.
    """
    memory, per_node = cluster.gpu_memory_gib, cluster.gpu_per_node
    seen = len(visible_gpus(None)) if here else 0
    if seen and memory is None and per_node != 0:
        memory = _smallest_memory()
    if per_node is not None:
        return Gpus(per_node * cluster.node_num, memory if per_node else None, True)
    if seen:
        return Gpus(seen, memory, False)
    return Gpus(None, memory, True) if memory or not here else Gpus(0, None, False)


def by_uuid(names: list[str]) -> dict[str, str]:
    """Maps UUIDs to names of the listed GPUs, given by index or UUID prefix; of duplicates the first name counts. If
    nvidia-smi does not report the UUID, or for a slice of a GPU (MIG), the name is used as the UUID."""
    rows = [line.split(", ") for line in _asked("index,uuid")]
    known = {row[0]: row[1] for row in rows if len(row) == 2}
    found: dict[str, str] = {}
    for name in names:
        same = [uuid for index, uuid in known.items() if name == index or uuid.startswith(name)]
        found.setdefault(same[0] if same else name, name)
    return found


def gpus_by_stage(stages: dict, here: bool = True) -> dict[str, Gpus]:
    """Returns `planned_gpus` of each stage, from its settings; equal settings are looked up once."""
    found: dict[str, Gpus] = {}
    for name, settings in stages.items():
        same = (found[other] for other in found if stages[other].cluster == settings.cluster)
        found[name] = next(same, None) or planned_gpus(settings.cluster, here)
    return found


def introduced() -> list[str]:
    """Returns a line for each kind of GPU of this machine with its driver and memory, and one of what to run first;
    none where nvidia-smi lists no GPU with a memory."""
    rows = [line.split(", ") for line in _asked("name,driver_version,memory.total")]
    kinds = Counter((name, driver, int(mib) / 1024) for name, driver, mib in rows if mib.isdigit())
    if not kinds:
        return []
    smallest = min(gib for _, _, gib in kinds)
    first = next(words for count, gib, words in FIRST if kinds.total() >= count and smallest >= gib)
    return [*(f"{count} x {name}, driver {driver}, {gib:.1f} GiB" for (name, driver, gib), count in kinds.items()),
            f"to begin with: ouro config check {first}, then ouro run {first}"]


def _smallest_memory() -> float | None:
    """Returns the memory of the smallest visible GPU in GiB; None if nvidia-smi does not report it."""
    sizes = [float(line) for line in _asked("memory.total") if line.replace(".", "", 1).isdigit()]
    return min(sizes) / 1024 if sizes else None


def gpus() -> list[dict[str, Any]]:
    """Returns of each GPU that NVIDIA's tool lists `name`, `used` (a share of the last moments), `memory_used_gib` and
    `memory_gib`; none where it does not answer."""
    with suppress(subprocess.SubprocessError, OSError, ValueError):  # ValueError: it prints [N/A]
        lines = [line.split(", ") for line in _asked("name,utilization.gpu,memory.used,memory.total")]
        return [{"name": name, "used": float(used) / 100, "memory_used_gib": float(taken) / 1024,
                 "memory_gib": float(total) / 1024} for name, used, taken, total in lines]
    return []


def _asked(columns: str) -> list[str]:
    """Returns nvidia-smi's output per GPU, one line each; empty when it is missing or does not respond."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, f"--query-gpu={columns}", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    return answer.stdout.splitlines() if answer.returncode == 0 else []


def needed_gpus(mode: str, *holders: int) -> int:
    """Returns the GPUs of a stage from the numbers of its components: their sum, or the maximum under colocate."""
    return max(holders) if mode == "colocate" else sum(holders)


if __name__ == "__main__":
    print(*introduced(), sep="\n")
