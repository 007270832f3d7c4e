"""Starts, supervises and ends the child processes of a training stage.

The parent (stages/train.py, stages/rft.py) does not import torch. It starts the children and follows the step files
they write. When one child dies, the parent ends the others within seconds; when the parent dies, the kernel ends the
children.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.job.context import Context, advised, die_with_parent, ending, open_stage, our_environment
from pipeline.job.threads import record_threads, thread_environment
from pipeline.store import files
from pipeline.store.errors import OuroError, StageError, masked
from pipeline.store.user_errors import brief, users_frames, users_traceback

POLL_SECONDS = 0.05
GRACE_SECONDS = 5.0
RENDEZVOUS = ".rendezvous"  # in a stage's directory: where the ranks of its trainer meet
# a stage has one node: nothing listens to the network
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": "127.0.0.1"}
NO_MEMORY = "MemoryError: no more memory was granted; look at `ulimit -v` and the limit of the job or container"


@dataclass
class Child:
    """A process to start. name: also of its log and error file. cores: the CPU cores it may use."""

    name: str
    module: str
    cores: list[int]
    ranks: int = 1
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        """Threads for each of its processes."""
        return max(len(self.cores) // self.ranks, 1)

    def commands(self, directory: Path) -> list[tuple[list[str], dict[str, str]]]:
        """The command of each of its processes, and what torch.distributed needs in its environment."""
        command = [sys.executable, "-m", self.module, str(directory)]
        return [(command, {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.ranks),
                           "LOCAL_WORLD_SIZE": str(self.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})
                for rank in range(self.ranks)]


def supervise(context: Context, children: list[Child], follow: Callable[[], None]) -> None:
    """Runs the children to the end and polls `follow`. Raises StageError when one fails; none survives."""
    record_threads(context.directory, {child.name: child.threads for child in children}, context.log)
    running: list[tuple[str, subprocess.Popen]] = []
    try:
        for child in children:
            for process in _start(context, child):
                running.append((child.name, process))
        while running:
            time.sleep(POLL_SECONDS)
            follow()
            for name, process in list(running):
                code = process.poll()
                if code is not None:
                    running.remove((name, process))
                    if code != 0:
                        raise StageError(_failure(context.directory, name, code))
        follow()
    finally:
        _end([process for _, process in running])


def _start(context: Context, child: Child) -> Iterator[subprocess.Popen]:
    """Starts a child's processes, one for each rank."""
    (context.directory / f"{child.name}.error").unlink(missing_ok=True)
    (context.directory / RENDEZVOUS).unlink(missing_ok=True)
    environment = our_environment() | thread_environment(child.threads) | LOOPBACK | child.environment

    def prepare() -> None:
        die_with_parent()
        os.sched_setaffinity(0, child.cores)

    with open(context.directory / f"{child.name}.log", "ab") as log:
        for command, place in child.commands(context.directory):
            yield subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment | place,
                                   preexec_fn=prepare, start_new_session=True)


def _failure(directory: Path, name: str, code: int) -> str:
    error = directory / f"{name}.error"
    log = directory / f"{name}.log"
    reason = error.read_text().strip() if error.exists() else ending(code)
    free = shutil.disk_usage(directory).free
    note = f" (only {free / 2**20:.0f} MiB are free on that disk)" if free < 2**26 else ""
    if not error.exists() and not note and code in (1, -signal.SIGABRT):  # ended before writing its error file
        reason += "".join(f": {line}" for line in log.read_text(errors="replace").strip().splitlines()[-1:])
    return f"the {name} of stage {directory.name} died: {reason}{note}\n  its log: {log}"


def _end(processes: list[subprocess.Popen]) -> None:
    """Sends SIGTERM to the process groups, and kills them after a grace period."""
    deadline = time.monotonic() + GRACE_SECONDS
    for kill in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, kill)
        while any(p.poll() is None for p in processes) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
    for process in processes:
        process.wait()


def run_child(work: Callable[[Context], None], name: str, doc: str) -> None:
    """The `main` of a child module. Writes its error to `<name>.error` for the parent to show."""
    if "--help" in sys.argv or len(sys.argv) != 2:
        print(doc)
        sys.exit(0 if "--help" in sys.argv else 2)
    die_with_parent()
    directory = Path(sys.argv[1])
    context = open_stage(directory, f"{name}.log", terminal=False)
    try:
        work(context)
    except SystemExit as error:  # from user code: with exit code 0 the other side would wait forever
        _write_error(context, name, f"something called sys.exit({error.code})", traceback.format_exc())
        sys.exit(1)
    except OuroError as error:
        _write_error(context, name, advised(error, context), str(error))
        sys.exit(2)
    except MemoryError as error:
        _write_error(context, name, NO_MEMORY, users_traceback(error))
        sys.exit(1)
    except Exception as error:
        full = users_traceback(error)
        _write_error(context, name, f"{brief(error)}\n{full}" if users_frames(error) else brief(error), full)
        sys.exit(1)


def _write_error(context: Context, name: str, short: str, full: str) -> None:
    context.log.error("%s", full)
    if (context.directory / f"{name}.error").exists():  # written by another rank, which failed first
        return
    with contextlib.suppress(OSError, StageError):  # the disk is full; the parent then reports the free space
        files.write_atomic(context.directory / f"{name}.error", lambda path: path.write_text(masked(short) + "\n"))
