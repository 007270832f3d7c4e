"""The GPUs of a run: those that this machine shows, those that the configuration declares, how many a stage asks for.

Found without importing torch, so that a plan can be judged in no time and on a machine that has none.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path

NAME = re.compile(r"\d+|(GPU|MIG)-\S+")  # of a GPU, as CUDA_VISIBLE_DEVICES has it


@dataclass(frozen=True)
class Gpus:
    """The GPUs that a run may count on.

    count: how many; None when a GPU is meant but nothing says how many. gib: memory of each; None when unknown.
    declared: whether the configuration says so; otherwise this machine shows them.
    """

    count: int | None
    gib: float | None
    declared: bool

    @property
    def any(self) -> bool:
        return self.count != 0


def torch_has_cuda() -> bool:
    """Whether the installed torch can use a GPU at all, found without importing it."""
    found = importlib.util.find_spec("torch")
    return bool(found and found.origin and (Path(found.origin).parent / "lib" / "libtorch_cuda.so").exists())


def visible_gpus(at_most: int | None) -> list[str]:
    """What CUDA_VISIBLE_DEVICES names, or all that NVIDIA's driver shows; none for a CPU build of torch.

    at_most: `cluster.gpu_per_node`, use only the first so many; None: all. As in CUDA, the first name that is none, -1
    say, ends the list.
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
    """GPUs of a machine that stages run on: `cluster.gpu_per_node`, else those that are visible here."""
    return len(visible_gpus(None)) if per_node is None else per_node


def planned_gpus(cluster: dict, here: bool = True) -> Gpus:
    """What the section `cluster` declares, and where it is silent, what is visible here.

    here: whether the run is for this machine; otherwise what it shows says nothing.
    """
    memory, per_node = cluster["gpu_memory_gib"], cluster["gpu_per_node"]
    seen = len(visible_gpus(None)) if here else 0
    if seen and memory is None and per_node != 0:
        memory = _smallest_memory()
    if per_node is not None:
        return Gpus(per_node * cluster["node_num"], memory if per_node else None, True)
    if seen:
        return Gpus(seen, memory, False)
    return Gpus(None, memory, True) if memory or not here else Gpus(0, None, False)


def by_uuid(names: list[str]) -> dict[str, str]:
    """UUID -> name of the GPUs that are named, by index or by the beginning of their UUID; of two names of one GPU the
    first. Where NVIDIA's tool does not tell it, and of a slice of a GPU (MIG), the name stands for the UUID.
    """
    rows = [line.split(", ") for line in _asked("index,uuid")]
    known = {row[0]: row[1] for row in rows if len(row) == 2}
    found: dict[str, str] = {}
    for name in names:
        same = [uuid for index, uuid in known.items() if name == index or uuid.startswith(name)]
        found.setdefault(same[0] if same else name, name)
    return found


def gpus_by_stage(stages: dict[str, dict], here: bool = True) -> dict[str, Gpus]:
    """`planned_gpus` of each stage, from its settings; what is described alike is looked for once."""
    look = cache(lambda described: planned_gpus(dict(described), here))
    return {name: look(tuple(settings["cluster"].items())) for name, settings in stages.items()}


def _smallest_memory() -> float | None:
    """Memory of the smallest visible GPU in GiB; None where NVIDIA's tool does not tell it."""
    sizes = [float(line) for line in _asked("memory.total") if line.replace(".", "", 1).isdigit()]
    return min(sizes) / 1024 if sizes else None


def _asked(columns: str) -> list[str]:
    """What NVIDIA's own tool says of each GPU, a line each; none where there is none, or it does not answer."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, f"--query-gpu={columns}", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    return answer.stdout.splitlines() if answer.returncode == 0 else []


def needed_gpus(mode: str, *holders: int) -> int:
    """GPUs of a stage whose parts hold so many each: their sum, or the largest when they take turns (colocate)."""
    return max(holders) if mode == "colocate" else sum(holders)
