"""Starts, supervises and ends the child processes of a training stage.

The parent (stages/train.py, stages/rft.py) does not import torch. It starts the children and follows the step files
they write. When one child dies, the parent ends the others within seconds; when the parent dies, the kernel ends the
children.
"""

import atexit
import contextlib
import gc
import io
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from ouroboros.pipeline.job import step
from ouroboros.pipeline.job.activity import Activity, show_stack_on_signal
from ouroboros.pipeline.job.context import Context, advised, ending, open_stage, our_environment
from ouroboros.pipeline.job.ending import INTERRUPTED, SIGNALS, TOGETHER_SECONDS, Stopped, die_with_parent, end_later
from ouroboros.pipeline.job.error_file import last_line
from ouroboros.pipeline.job.own_process import ProcessEnded, called, calls_file, ended_early
from ouroboros.pipeline.job.threads import record_threads, thread_environment
from ouroboros.pipeline.job.watchdog import Watchdog, activity_file
from ouroboros.pipeline.store import checkpoints, files, launch, tables, user_calls
from ouroboros.pipeline.store.errors import OuroError, StageError, masked
from ouroboros.pipeline.store.user_errors import brief, users_frames, users_traceback

POLL_SECONDS = 0.05
GRACE_SECONDS = 5.0  # for a child that saves nothing when asked to end
TRAINER = "trainer"  # the child that saves a checkpoint
NOTABLE_SECONDS = 10.0
RENDEZVOUS = ".rendezvous"  # in a stage's directory: where the ranks of a trainer on one node meet
# on one node: nothing listens to the network
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
    nodes: list[str] = field(default_factory=list)  # of its ranks, if there are several
    gpus: int = 0  # of each of them

    @property
    def threads(self) -> int:
        """Threads for each of its processes."""
        return max(len(self.cores) * max(len(self.nodes), 1) // self.ranks, 1)

    def commands(self, directory: Path) -> list[tuple[list[str], dict[str, str]]]:
        """Returns the command of each of its processes, one for each rank, and what torch.distributed needs in its
        environment; with several nodes, the one `srun` that starts all ranks."""
        module = [self.module, str(directory)]
        if self.nodes:
            return [(step.command(module, 0, self.gpus, self.nodes, self.ranks), {})]
        return [(launch.command(*module),
                 {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.ranks),
                  "LOCAL_WORLD_SIZE": str(self.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})
                for rank in range(self.ranks)]


@dataclass
class Running:
    """The processes of a child."""

    processes: list[subprocess.Popen]

    @property
    def alive(self) -> bool:
        return any(process.poll() is None for process in self.processes)

    @property
    def code(self) -> int | None:
        """The exit code: of the first process that failed; None while others run and none failed."""
        codes = [process.poll() for process in self.processes]
        failed = [code for code in codes if code]
        return failed[0] if failed else None if None in codes else 0


def trainer_child(config, own_cores: list[int]) -> Child:
    """Returns the trainer of a stage: ranks on this machine, or evenly on the nodes of its job of SLURM."""
    child = Child(TRAINER, "ouroboros.stages.learn", own_cores, config.trainer.ranks)
    if config.cluster.node_num > 1:
        child.nodes = step.nodes()
        child.environment |= step.rendezvous()
        child.gpus = config.trainer.ranks // config.cluster.node_num if config.cluster.gpu_per_node else 0
    return child


def supervise(context: Context, children: list[Child], follow: Callable[[], None]) -> None:
    """Runs the children to the end and polls `follow`. Raises StageError when one fails; none survives."""
    record_threads(context.directory, {child.name: child.threads for child in children}, context.log)
    running: dict[str, Running] = {}
    dogs: dict[str, Watchdog] = {}
    try:
        for child in children:
            running[child.name] = Running([])
            running[child.name].processes.extend(_start(context, child))
            pids = [process.pid for process in running[child.name].processes]
            dogs[child.name] = watchdog(context, child.name, pids)
        while running:
            time.sleep(POLL_SECONDS)
            context.activity.alive()
            follow()
            _check(context.directory, running, dogs)
        follow()
    except Stopped as stopped:
        raise _end_softly(context, running, stopped, follow) from None
    except StageError as error:
        if TRAINER not in running:
            raise
        saved = _end_softly(context, running, Stopped(signal.SIGTERM), follow).note  # its steps need not be repeated
        error.args = (f"{error}\n  {saved}" if saved else str(error),)
        raise
    finally:
        _end([process for each in running.values() for process in each.processes])
        for child in children:
            activity_file(context.directory, child.name).unlink(missing_ok=True)
            calls_file(context.directory, child.name).unlink(missing_ok=True)


def _check(directory: Path, running: dict[str, Running], dogs: dict[str, Watchdog]) -> None:
    """Drops children that have ended from `running`. Raises for one that hangs or failed, which is then ended."""
    for hanging in [name for name in running if dogs[name].hangs()]:
        error = StageError(dogs[hanging].explain())
        if hanging == TRAINER:  # it cannot save anything
            _end(running.pop(TRAINER).processes)
        raise error
    for name, each in list(running.items()):
        ended = each.code  # asked first: what ends between the two questions is looked at the next time
        code, where = ended_early(directory, name, each.processes) or (ended, "")
        function = None if code is None else called(directory, name)
        if code == 0 and not function and not where:
            del running[name]
        elif code is not None:
            failure = _failure(directory, name, code, [dogs[other] for other in running if other != name])
            if (function or where) and isinstance(failure, Stopped):
                time.sleep(TOGETHER_SECONDS)  # raises where this process was asked to end too
                code = -failure.number
            elif isinstance(failure, StageError):  # its other ranks cannot go on
                _end(running.pop(name).processes)
            if where and not function:
                failure = StageError(f"the {name} of stage {directory.name} {ending(code)} {where}")
            raise ProcessEnded(name, function, ending(code)) if function else failure


def _start(context: Context, child: Child) -> Iterator[subprocess.Popen]:
    """Starts a child's processes, one for each rank."""
    for old in (context.directory / f"{child.name}.error", activity_file(context.directory, child.name),
                calls_file(context.directory, child.name), context.directory / RENDEZVOUS):
        old.unlink(missing_ok=True)
    own = child.environment if child.nodes else LOOPBACK | child.environment
    environment = our_environment() | thread_environment(child.threads) | own

    def prepare() -> None:
        die_with_parent()
        os.sched_setaffinity(0, child.cores)

    with open(context.directory / f"{child.name}.log", "ab") as log:
        for command, place in child.commands(context.directory):
            yield subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment | place,
                                   preexec_fn=prepare, start_new_session=True)


def _failure(directory: Path, name: str, code: int, others: Sequence[Watchdog] = ()) -> StageError | Stopped:
    """Why a child ended that was not asked to by this process: it failed, or a signal asked it to.

    others: of the children that still run; the failed one may have waited for one of them.
    """
    error, log = directory / f"{name}.error", directory / f"{name}.log"
    reason = error.read_text(encoding="utf-8", errors="replace").strip() if error.exists() else ending(code)
    if asked := re.match(rf"{INTERRUPTED} by (\w+)(?:; )?(.*)", reason):
        return Stopped(signal.Signals[asked[1]], asked[2])
    if -code in SIGNALS and not error.exists():  # while it was starting
        return Stopped(-code)
    note = f" ({lack})" if (lack := files.lack(directory, least=2**26)) and lack not in reason else ""
    if not error.exists() and not note and code in (1, 127, -signal.SIGABRT):  # ended before writing its error file
        reason += "".join(f": {line}" for line in last_line(log.read_text(errors="replace")))
    if (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        note += f" (`ulimit -v` allows each process {limit / 2**30:.1f} GiB of addresses)"
    busy = "".join(f"\n  meanwhile the {other.name}: {other.activity}, without a sign of life for {other.seconds:.0f} s"
                   for other in others if other.seconds > NOTABLE_SECONDS)
    return StageError(f"the {name} of stage {directory.name} died: {reason}{note}{busy}\n  its log: {log}")


def _end_softly(context: Context, running: dict[str, Running], stopped: Stopped, follow: Callable[[], None]) -> Stopped:
    """Ends the children, the trainer after its checkpoint; returns `stopped` with a note on what was saved."""
    deadline = (context.ending.began or time.monotonic()) + context.config.log.grace_seconds
    trainer = running.get(TRAINER)
    _signal([process for each in running.values() for process in each.processes], signal.SIGTERM)
    _end([process for name, each in running.items() if name != TRAINER for process in each.processes])
    while trainer and trainer.alive and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        follow()
    if trainer is None:  # it has ended, maybe because it was asked
        return Stopped(stopped.number, stopped.note or _saved(context.directory))
    late = trainer.alive
    _end(trainer.processes, grace=0.0)
    follow()
    if late:
        saved = (checkpoints.complete_checkpoints(context.directory) or [0])[-1]
        return Stopped(stopped.number, f"its trainer did not end within {context.config.log.grace_seconds:g} s "
                                       f"(log.grace_seconds), {kept(saved)}")
    ended = _failure(context.directory, TRAINER, trainer.code) if trainer.code else stopped
    if isinstance(ended, StageError):
        context.log.warning("%s", ended)
    return Stopped(stopped.number, getattr(ended, "note", "") or _saved(context.directory))


def _saved(stage: Path) -> str:
    """What is saved of a stage whose trainer left no note; empty for one without steps."""
    steps, checkpoint = tables.steps_present(stage, "steps"), (checkpoints.complete_checkpoints(stage) or [0])[-1]
    if not steps:
        return ""
    if checkpoint == steps[-1]:
        return f"step {checkpoint} is saved"
    return f"step {steps[-1]} is not saved; {kept(checkpoint)}"


def kept(step: int) -> str:
    return f"the checkpoint of step {step} is kept" if step else "there is no checkpoint yet"


def watchdog(context: Context, name: str, pids: list[int]) -> Watchdog:
    """The watchdog of a child; its limit is a setting of the section trainer, or else explorer."""
    section = TRAINER if name == TRAINER else "explorer"
    limit = getattr(context.config, section).step_timeout_seconds
    calls = None if section == TRAINER else context.config.explorer.max_timeout
    return Watchdog(name, context.directory, pids, limit, f"{section}.step_timeout_seconds", calls)


def _signal(processes: list[subprocess.Popen], number: int) -> None:
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, number)


def _end(processes: list[subprocess.Popen], grace: float | None = None) -> None:
    """Sends SIGTERM to the process groups, and kills them after a grace period."""
    deadline = time.monotonic() + (GRACE_SECONDS if grace is None else grace)
    for kill in (signal.SIGTERM, signal.SIGKILL):
        _signal(processes, kill)
        while any(p.poll() is None for p in processes) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
    for process in processes:
        process.wait()


def run_child(work: Callable[[Context], None], name: str, doc: str) -> None:
    """The `main` of a child module. Writes its error to `<name>.error` for the parent to show. Does not return."""
    if "--help" in sys.argv or len(sys.argv) != 2:
        print(doc)
        sys.exit(0 if "--help" in sys.argv else 2)
    die_with_parent()
    directory = Path(sys.argv[1])
    context, code = open_stage(directory, f"{name}.log", terminal=False), 0
    try:
        context.ending.listen()
        show_stack_on_signal()
        user_calls.open_slot(calls_file(directory, name), int(os.environ.get("RANK", "0")))
        if os.environ.get("RANK", "0") == "0":
            context.activity = Activity(activity_file(directory, name))
        work(context)
        if name == TRAINER:
            context.ending.complete()
    except Stopped as stopped:
        _write_error(context, name, str(stopped), str(stopped))
        code = stopped.exit_code
    except OuroError as error:
        _write_error(context, name, advised(error, context), str(error))
        code = 2
    except MemoryError as error:
        _write_error(context, name, NO_MEMORY, users_traceback(error))
        code = 1
    except BaseException as error:  # sys.exit too: with exit code 0 the other side would wait forever
        full = users_traceback(error)
        _write_error(context, name, f"{brief(error)}\n{full}" if users_frames(error) else brief(error), full)
        code = 1
    if code <= 2:  # else it was asked to end, maybe by a function that it calls
        user_calls.done()
    if name == TRAINER and code == 0:
        leave()
    if name != TRAINER:  # which may be writing a checkpoint
        end_later(code)
    sys.exit(code)  # here, where no traceback keeps engine and model alive


def leave(waits: bool = False) -> NoReturn:
    """Ends a process whose work is complete, with exit code 0. Calls what is registered with atexit and writes what is
    left in open files, but takes neither model nor libraries apart, which takes seconds. waits: first for threads, as
    Python does. Prints errors."""
    try:
        for phase in (threading._shutdown, atexit._run_exitfuncs)[not waits:]:  # neither has a public name
            try:
                phase()
            except BaseException:  # sys.exit too
                traceback.print_exc()
        with contextlib.suppress(RuntimeError):  # no more threads
            end_later(0)  # a pipe that is full may never be read
        gc.disable()
        gc.unfreeze()  # what pipeline/job/opening.py froze is in no list of objects
        for kind in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):  # a text is on a buffer
            # by type(): isinstance asks the object, and a proxy of one that is gone (of torch's, say) raises
            for file in [one for one in gc.get_objects() if issubclass(type(one), kind)]:
                with contextlib.suppress(Exception):  # a pipe that nobody reads, a closed file, a user's class
                    file.flush()
    finally:
        os._exit(0)


def _write_error(context: Context, name: str, short: str, full: str) -> None:
    context.log.error("%s", full)
    if (context.directory / f"{name}.error").exists():  # written by another rank, which failed first
        return
    with contextlib.suppress(OSError, StageError):  # the disk is full; the parent then reports the free space
        files.write_atomic(context.directory / f"{name}.error",
                           lambda path: path.write_text(masked(short) + "\n", encoding="utf-8"))
