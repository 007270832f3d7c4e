"""Forks a process for every attempt of a workflow with a parameter `model`, and ends it with all that it started.

    python -m workflows.attempts.host FD

FD: a SOCK_SEQPACKET socket with orders. `start NUMBER MODULE` carries the socket of the attempt; MODULE, the
workflow's, is imported once, here, so that every attempt has it. `end NUMBER` kills the attempt's process group;
`code NUMBER` does so too and is answered with its exit code. Nothing else is imported and no thread is started: a fork
takes milliseconds and is safe. When the explorer ends, by whatever cause, the socket is closed, and this process ends
all attempts and itself.
"""

import contextlib
import importlib
import os
import signal
import socket
import sys
import time

from pipeline.job.ending import SIGNALS, die_with_parent
from workflows.attempts import child

REAP_SECONDS = 1.0  # for the kernel to end a killed process


def serve(control: socket.socket) -> None:
    """Obeys orders until the explorer closes the socket."""
    processes: dict[str, int | None] = {}
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
        if not message:
            break
        order, number, *module = message.decode().split()
        if order == "start":
            processes[number] = _start(control, *module, *descriptors)
        else:
            code = _end(processes.pop(number))
            if order == "code":
                control.send(str(code).encode())
    for pid in processes.values():
        _end(pid)


def _start(control: socket.socket, module: str, descriptor: int) -> int | None:
    """Forks the process of an attempt; returns its id, or None if there is no room for it."""
    with contextlib.suppress(Exception):  # the attempt raises it again, and its row has the reason
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
        child.run(socket.socket(fileno=descriptor))
    finally:
        os._exit(1)


def _end(pid: int | None) -> int | None:
    """Kills the process group of an attempt; returns its exit code, as of subprocess, or None if it has none."""
    deadline = time.monotonic() + REAP_SECONDS
    while pid is not None and time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError):  # it has no group of its own yet, or none any more
            os.killpg(pid, signal.SIGKILL)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    return None


if __name__ == "__main__":
    for ignored in SIGNALS:
        signal.signal(ignored, signal.SIG_IGN)  # the explorer decides when this process ends
    serve(socket.socket(fileno=int(sys.argv[1])))
