"""Ties the life of a process to that of its parent."""

import ctypes
import os
import signal

PDEATHSIG = 1  # prctl(2)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Asks Linux to signal this process when its parent dies, so that a killed stage leaves no orphans.

    The parent is the thread that started the process: it must not end before.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PDEATHSIG, number)
    if os.getppid() != parent:  # the parent died before the call
        os.kill(os.getpid(), number)
