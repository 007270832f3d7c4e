"""Which GPUs and CPU cores of a machine a stage takes: those that no other stage holds, so that stages may run side by
side.

A GPU is held by a lock on a file, which the kernel drops when its holder dies. Stages know of each other where their
runs have the same checkpoint_root_dir. What SLURM gives a job is that job's alone, whatever numbers it bears there.
A machine is told by its boot, for containers on several may bear one name; a GPU by its UUID, for it may have two.
"""

import contextlib
import itertools
import logging
import os
import platform
import re
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline.job.devices import by_uuid, visible_gpus
from pipeline.job.shares import held_gpus
from pipeline.store import files

POLL_SECONDS = 1.0
BOOT = Path("/proc/sys/kernel/random/boot_id")  # one for a machine and all its containers, until it starts again


@contextlib.contextmanager
def claimed(kind: str, config, root: str, log: logging.Logger) -> Iterator[None]:
    """Holds the GPUs of a stage of this kind for the block; CUDA_VISIBLE_DEVICES names them, and nobody else's.

    Waits until enough are free. A stage that asks for more than there are is left to say so itself.
    """
    needed = held_gpus(kind, config)
    visible = by_uuid(visible_gpus(config.cluster.gpu_per_node)) if needed else {}
    with contextlib.ExitStack() as held:
        if 0 < needed <= len(visible):
            mine = _claim(visible, needed, _place(root), held, log)
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
        yield


@contextlib.contextmanager
def claimed_cores(available: list[int], number: int, root: str) -> Iterator[list[int]]:
    """`number` of the available CPU cores, held for the block; those of other stages only where too few are free."""
    place = _place(root)
    place.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        free = (core for core in available if _lock(place, f"core{core}", held))
        mine = list(itertools.islice(free, number))
        yield sorted([*mine, *[core for core in available if core not in mine][: number - len(mine)]])


def _place(root: str) -> Path:
    """Where the locks of this machine, or of this job on it, lie."""
    job = os.environ.get("SLURM_JOB_ID")
    machine = BOOT.read_text(encoding="utf-8").strip() if BOOT.exists() else platform.node()  # a sandbox may hide it
    return Path(root) / "gpus" / (machine + (f"-job{job}" if job else ""))


def _claim(visible: dict[str, str], needed: int, place: Path, held: contextlib.ExitStack,
           log: logging.Logger) -> list[str]:
    """Locks so many of the visible GPUs; returns their names in their order. visible: UUID -> name.

    One stage at a time chooses, and keeps what it has while it waits for more: a stage that needs many is not overtaken
    for ever by those that need few, and no two wait for each other.
    """
    mine: set[str] = set()
    with files.locked(place / "turn", lambda holder: log.info("waiting for GPUs: %s is before it", holder)):
        waiting = False
        while True:
            for uuid in visible:
                if len(mine) < needed and uuid not in mine and _lock(place, uuid, held):
                    mine.add(uuid)
            if len(mine) == needed:
                return [name for uuid, name in visible.items() if uuid in mine]
            if not waiting:
                log.info("waiting for %d of %d GPUs: other stages hold them", needed - len(mine), needed)
                waiting = True
            time.sleep(POLL_SECONDS)


def _lock(place: Path, name: str, held: contextlib.ExitStack) -> bool:
    """Whether a GPU or core is free; then it is held."""
    file = open(place / re.sub(r"[^\w.-]", "_", name), "a", encoding="utf-8")  # noqa: SIM115 `held` closes it
    if not files.take_lock(file):
        file.close()
        return False
    held.enter_context(file)
    return True
