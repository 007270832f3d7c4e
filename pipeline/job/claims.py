"""Assigns GPUs and CPU cores that no other stage on the machine holds, so that stages can run concurrently.

A GPU is held by a file lock, which the kernel releases when its holder dies. Stages see each other's locks when their
runs share a checkpoint_root_dir. SLURM allocates devices exclusively to a job, whatever their indices there. A machine
is identified by its boot id, since several containers may share a name; a GPU by its UUID, since it may have two names.
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

from ouroboros.pipeline.job.devices import by_uuid, visible_gpus
from ouroboros.pipeline.job.shares import held_gpus
from ouroboros.pipeline.settings.kinds import Kind
from ouroboros.pipeline.store import files

POLL_SECONDS = 1.0
BOOT = Path("/proc/sys/kernel/random/boot_id")  # shared by a machine and all its containers until reboot


@contextlib.contextmanager
def claimed(kind: Kind, config, root: str, log: logging.Logger) -> Iterator[None]:
    """Holds the GPUs of a stage of this kind for the block; CUDA_VISIBLE_DEVICES lists only those.

    Waits until enough are free. A stage that requests more than exist reports that itself.
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
    """Holds `number` available CPU cores for the block; shares other stages' cores only if too few are free."""
    place = _place(root)
    place.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        free = (core for core in available if _lock(place, f"core{core}", held))
        mine = list(itertools.islice(free, number))
        yield sorted([*mine, *[core for core in available if core not in mine][: number - len(mine)]])


def _place(root: str) -> Path:
    """Returns the directory of the locks of this machine, or of this job on it."""
    job = os.environ.get("SLURM_JOB_ID")
    machine = BOOT.read_text(encoding="utf-8").strip() if BOOT.exists() else platform.node()  # a sandbox may hide it
    return Path(root) / "gpus" / (machine + (f"-job{job}" if job else ""))


def _claim(visible: dict[str, str], needed: int, place: Path, held: contextlib.ExitStack,
           log: logging.Logger) -> list[str]:
    """Locks this many of the visible GPUs; returns their names in order. visible: UUID -> name.

    Only one stage at a time selects, and keeps what it has while it waits for more: this prevents starvation of stages
    that need many GPUs, and deadlocks.
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
    """Tries to lock a GPU or core; returns whether it succeeded."""
    file = open(place / re.sub(r"[^\w.-]", "_", name), "a", encoding="utf-8")  # noqa: SIM115 `held` closes it
    if not files.take_lock(file):
        file.close()
        return False
    held.enter_context(file)
    return True
