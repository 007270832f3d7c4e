"""The processes of a run, by the locks that they hold: a stage its `.lock`, snakemake one in the run's `processes/`."""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ouroboros.pipeline.job.ending import RUNNER
from ouroboros.pipeline.job.processes import environment, status
from ouroboros.pipeline.store.errors import StageError
from ouroboros.pipeline.store.files import named_process, take_lock

_held: list[IO] = []  # open until this process ends


@dataclass(frozen=True)
class Holder:
    """A process that holds a lock. host: empty if the lock does not name it."""

    pid: int
    host: str

    def __str__(self) -> str:
        return f"process {self.pid}" + (f" on {self.host}" if self.host else "")

    @property
    def is_here(self) -> bool:
        return self.host in ("", platform.node())

    @property
    def runner(self) -> int | None:
        """The snakemake that runs this process, one of this machine; None if it was started by hand."""
        parent = status(self.pid, "PPid")
        return int(parent) if parent and environment(self.pid).get(RUNNER) == parent else None


def hold(view: Path) -> None:
    """Marks this process as one that runs the run with this view, until it ends."""
    place = view / "processes"
    place.mkdir(parents=True, exist_ok=True)
    file = open(place / f"{platform.node()}-{os.getpid()}.lock", "w", encoding="utf-8")  # noqa: SIM115
    if take_lock(file):
        file.write(named_process())
        file.flush()
        _held.append(file)


def launches(view: Path) -> list[Holder]:
    """The processes that run a run; removes the files of those that ended."""
    found = []
    for lock in sorted((view / "processes").glob("*.lock")):
        if holder := holder_of(lock):
            found.append(holder)
        else:
            lock.unlink(missing_ok=True)
    return found


def holder_of(lock: Path) -> Holder | None:
    """The living process that holds a lock file."""
    if not is_locked(lock):
        return None
    found = re.search(r"process (\d+)(?: on (\S+))?", lock.read_text(encoding="utf-8"))
    return Holder(int(found[1]), found[2] or "") if found else None


def is_locked(path: Path) -> bool:
    """Returns whether a living process holds the lock file."""
    if not path.exists():
        return False
    if not path.is_file():  # opening a pipe may never end
        raise StageError(f"{path} is not a file. Delete it.")
    with open(path, encoding="utf-8") as file:
        return not take_lock(file, shared=True)
