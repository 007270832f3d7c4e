"""Sets the number of compute threads of a process: one per CPU core it may use, regardless of its launcher.

The number of threads determines the order of summation, and therefore the last bits of a stage's results. Any value set
by the shell (Snakemake sets its own, and torch prefers MKL's to OpenMP's) is overwritten. A stage keeps the numbers in
`threads.json`; when it resumes it uses as many cores as before.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from ouroboros.pipeline.job.claims import claimed_cores
from ouroboros.pipeline.job.shares import cores
from ouroboros.pipeline.store import files

RECORD = "threads.json"
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "BLIS_NUM_THREADS",
             "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS")


def thread_environment(number: int) -> dict[str, str]:
    """Returns the environment variables of a process that computes with this many threads."""
    spin = {"GOMP_SPINCOUNT": "20000"}  # long spinning slows a busy machine down thirtyfold
    return dict.fromkeys(VARIABLES, str(number)) | spin


def recorded_threads(stage: Path) -> dict[str, int]:
    """Returns what `record_threads` wrote for a stage; empty for one that was never started."""
    return files.read_json(stage / RECORD) if (stage / RECORD).exists() else {}


@contextlib.contextmanager
def cores_taken(stage: Path, root: str, log: logging.Logger) -> Iterator[None]:
    """Sets cores and threads of this process: as many as at the stage's first launch, if the machine has them.

    Only the number affects results, not the choice of cores: the block holds ones that no other stage holds.
    """
    begun, available = recorded_threads(stage).get("cores", 0), cores()
    with contextlib.ExitStack() as held:
        if 0 < begun < len(available):
            os.sched_setaffinity(0, held.enter_context(claimed_cores(available, begun, root)))
            log.info("uses %d of %d CPU cores, as when it began", begun, len(available))
        os.environ.update(thread_environment(len(cores())))
        record_threads(stage, {"cores": len(cores())}, log)
        yield


def record_threads(stage: Path, numbers: dict[str, int], log: logging.Logger) -> None:
    """Adds to the record of a stage: its `cores` (equal to its own process's threads), and each child's threads.

    Warns of a number that differs from the stage's earlier launch.
    """
    before = recorded_threads(stage)
    changed = [f"{name} {before[name]} -> {now}" for name, now in numbers.items() if before.get(name, now) != now]
    if changed:
        log.warning("resumed with another number of threads (%s): the results will differ in rounding from those of an "
                    "uninterrupted run", ", ".join(changed))
        before = {"cores": before["cores"]} if "cores" in before else {}  # the children follow, and need no second line
    files.write_json(stage / RECORD, before | numbers)
