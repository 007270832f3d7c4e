"""Forks processes on orders that come through a socket, and ends each with all that it started.

Orders: `start NUMBER [MODULE …]` carries the socket of the new process; the modules are imported once, here, so that
every process has them. `end NUMBER` kills its process group; `code NUMBER` does so too and is answered with its exit
code. The process that obeys imports nothing else and starts no thread: a fork takes milliseconds and is safe.
"""

import contextlib
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

from pipeline.job.ending import SIGNALS, die_with_parent

REAP_SECONDS = 1.0  # for the kernel to end a killed process


def obey(run: Callable[[socket.socket], object]) -> None:
    """The `main` of a module that workflows/attempts/forker.py starts with the number of the socket of its orders."""
    for ignored in SIGNALS:
        signal.signal(ignored, signal.SIG_IGN)  # the explorer decides when this process ends
    serve(socket.socket(fileno=int(sys.argv[1])), run)


def serve(control: socket.socket, run: Callable[[socket.socket], object]) -> None:
    """Obeys orders until the other side closes the socket. run: what a process does with its own."""
    processes: dict[str, int | None] = {}
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
        if not message:
            break
        order, number, *modules = message.decode().split()
        if order == "start":
            processes[number] = _start(control, run, modules, *descriptors)
        else:
            code = _end(processes.pop(number))
            if order == "code":
                control.send(str(code).encode())
    for pid in processes.values():
        _end(pid)


def _start(control: socket.socket, run: Callable, modules: list[str], descriptor: int) -> int | None:
    """Forks a process; returns its id, or None if there is no room for it."""
    for module in modules:
        with contextlib.suppress(BaseException):  # the attempt raises it again, and its row has the reason
            importlib.import_module(module)
    try:
        pid = os.fork()
    except OSError:
        pid = None
    if pid != 0:
        os.close(descriptor)
        return pid
    try:
        os.setsid()  # its own group, with which everything that it starts is killed
        die_with_parent()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        control.close()
        run(socket.socket(fileno=descriptor))
    finally:
        os._exit(1)


def _end(pid: int | None) -> int | None:
    """Kills the process group of a process; returns its exit code, as of subprocess, or None if it has none."""
    deadline = time.monotonic() + REAP_SECONDS
    while pid is not None and time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError):  # it has no group of its own yet, or none any more
            os.killpg(pid, signal.SIGKILL)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    return None
