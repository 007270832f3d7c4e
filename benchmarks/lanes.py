"""Runs many `ouro run` side by side, each on its own CPU cores; what is complete is not made again."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from benchmarks.measurement import HERE

Words = Sequence[str]


def side_by_side(root: Path, runs: Mapping[str, Words], cores: int = 2) -> list[str]:
    """Makes runs by name, in order, `cores` CPU cores for each; returns the names of those that failed.

    What a run prints is written to root/output/NAME.txt. `root` is the checkpoint_root_dir of all: one that was
    interrupted goes on, and a stage that several have in common is made by the first, for which the others wait. For
    runs on the CPU: GPUs are not divided.
    """
    available, free = sorted(os.sched_getaffinity(0)), SimpleQueue()
    lanes = [available[first:first + cores] for first in range(0, len(available) - cores + 1, cores)] or [available]
    for lane in lanes:
        free.put(lane)

    def make(name: str) -> bool:
        lane = free.get()
        try:
            return _run(root, name, runs[name], lane)
        finally:
            free.put(lane)

    with ThreadPoolExecutor(len(lanes)) as pool:
        return [name for name, made in zip(runs, pool.map(make, runs), strict=True) if not made]


def required(root: Path, runs: Mapping[str, Words], cores: int = 2) -> None:
    """Like `side_by_side`, but ends the command where a run failed."""
    if failed := side_by_side(root, runs, cores):
        sys.exit(f"failed: {', '.join(failed)}; {root}/output has what they printed")


def _run(root: Path, name: str, words: Words, lane: Sequence[int]) -> bool:
    output = root / "output" / f"{name}.txt"
    output.parent.mkdir(parents=True, exist_ok=True)
    command = ["taskset", "--cpu-list", ",".join(map(str, lane)), sys.executable, "-m", "ouroboros", "run", *words,
               f"name={name}", f"checkpoint_root_dir={root}"]
    with output.open("w") as file:
        made = subprocess.run(command, cwd=HERE.parent, check=False, stdout=file, stderr=subprocess.STDOUT)
    print(f"{name}: {'complete' if not made.returncode else 'FAILED'}", file=sys.stderr, flush=True)
    return not made.returncode
