"""Forks processes on orders that come through a socket, and ends each with all that it started.

Orders: `start NUMBER [MODULE …]` carries the sockets of the new process; the modules are imported once, here, so that
every process has them, and what the client of OpenAI builds at its first request (warm.py). `end NUMBER` kills it and
every process below it; `code NUMBER` does so too and is answered with its exit code. The process that obeys imports
nothing else and starts no thread: a fork takes milliseconds and is safe.

It and the processes that it forks are subreapers (prctl(2)): a program that left its session, or whose parent ended,
stays below the process that it belongs to.
"""

import contextlib
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Container

from ouroboros.pipeline.job.ending import SIGNALS, die_with_parent
from ouroboros.pipeline.job.processes import children, end_below
from ouroboros.pipeline.store.parent import adopt_orphans
from ouroboros.pipeline.store.secret_names import conceal_secrets
from ouroboros.workflows.attempts.warm import warm_clients

REAP_SECONDS = 1.0  # for the kernel to end a killed process


def obey(run: Callable[..., object]) -> None:
    """The `main` of a module that workflows/attempts/forker.py starts with the number of the socket of its orders."""
    for ignored in SIGNALS:
        signal.signal(ignored, signal.SIG_IGN)  # the explorer decides when this process ends
    conceal_secrets()  # not from what it forks: that has the environment of this process
    serve(socket.socket(fileno=int(sys.argv[1])), run)


def serve(control: socket.socket, run: Callable[..., object], patience: float = 0.0) -> None:
    """Obeys orders until the other side closes the socket. run: what a process does with its own sockets.

    patience: seconds that a process has to end by itself, before it is killed.
    """
    adopt_orphans()
    processes: dict[str, int | None] = {}
    ours: set[int] = set()  # started by modules when they were imported
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 4096, 2)
        if not message:
            break
        order, number, *modules = message.decode().split()
        if order == "start":
            ours |= _imported(modules)
            processes[number] = _start(control, run, descriptors)
        else:
            code = _end(processes.pop(number), patience)
            _end_orphans({*ours, *processes.values()})
            if order == "code":
                control.send(str(code).encode())
    for pid in processes.values():
        _end(pid, patience)
    _end_orphans(())


def _imported(modules: list[str]) -> set[int]:
    """Imports modules; returns the processes that they started."""
    before = set(children(os.getpid())) if modules else set()
    for module in modules:
        with contextlib.suppress(BaseException):  # the attempt raises it again, and its row has the reason
            importlib.import_module(module)
    warm_clients()
    return set(children(os.getpid())) - before if modules else set()


def _start(control: socket.socket, run: Callable, descriptors: list[int]) -> int | None:
    """Forks a process; returns its id, or None if there is no room for it."""
    try:
        pid = os.fork()
    except OSError:
        pid = None
    if pid != 0:
        for descriptor in descriptors:
            os.close(descriptor)
        return pid
    try:
        os.setsid()  # signals to a process group, such as Ctrl-C, are not for it
        die_with_parent()
        adopt_orphans()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        control.close()
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)  # the other side waits for the end of this process, of no program
        run(*(socket.socket(fileno=descriptor) for descriptor in descriptors))
    finally:
        os._exit(1)


def _end(pid: int | None, patience: float) -> int | None:
    """Kills a process and all below it; returns its exit code, as of subprocess, or None if it has none."""
    if pid is None:
        return None
    code = _reaped(pid, patience) if patience else None
    if code is None:
        end_below(pid, REAP_SECONDS)
        os.kill(pid, signal.SIGKILL)
        code = _reaped(pid, REAP_SECONDS)
    return code


def _reaped(pid: int, seconds: float) -> int | None:
    """The exit code of a process once it has ended; None if it takes longer."""
    deadline = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.0005)


def _end_orphans(known: Container[int | None]) -> None:
    """Kills what ended processes have left. known: the children of this process that are none of these."""
    deadline = time.monotonic() + REAP_SECONDS
    while (left := [one for one in children(os.getpid()) if one not in known]) and time.monotonic() < deadline:
        for pid in left:
            _end(pid, 0.0)
