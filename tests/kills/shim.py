"""The library of shim.c: compiled once for each state of its source, and the environment that loads it."""

import os
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from ouroboros.pipeline.store import files

SOURCE = Path(__file__).with_name("shim.c")


class Operation(NamedTuple):
    """A write point: what a process is about to do to a file. kind: the path in a stage, numbers as N."""

    process: str
    operation: str
    kind: str


def library() -> Path:
    """Compiles the shim."""
    made = Path(tempfile.gettempdir()) / f"ouro-shim-{os.getuid()}-{files.hash_file(SOURCE)}.so"
    with FileLock(f"{made}.lock"):
        if not made.exists():
            words = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-U_FORTIFY_SOURCE"]
            subprocess.run([*words, "-o", f"{made}.tmp", SOURCE, "-ldl", "-lpthread"], check=True)
            os.replace(f"{made}.tmp", made)
    return made


def shimmed(root: Path, **variables: object) -> dict[str, str]:
    """Returns the environment of a command whose file operations below `root` pass the shim."""
    return os.environ | {"LD_PRELOAD": str(library()), "SHIM_ROOT": str(root)} | {
        f"SHIM_{name.upper()}": str(value) for name, value in variables.items()}


def read_trace(path: Path) -> list[tuple[Operation, str]]:
    """Returns the operations of a launch in order, each with the path below the root."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    fields = [line.split("\t") for line in lines]
    return [(Operation(*found[:3]), found[4]) for found in fields if len(found) == 5]


def counted(trace: list[tuple[Operation, str]]) -> Counter[Operation]:
    return Counter(operation for operation, _ in trace)
