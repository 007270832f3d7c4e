"""Ties the life of a process to that of its parent."""

import ctypes
import os
import signal

PDEATHSIG, CHILD_SUBREAPER = 1, 36  # prctl(2)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Asks Linux to signal this process when its parent dies, so that a killed stage leaves no orphans.

    The parent is the thread that started the process: it must not end before.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PDEATHSIG, number)
    if os.getppid() != parent:  # the parent died before the call
        os.kill(os.getpid(), number)


def adopt_orphans(adopts: bool = True) -> None:
    """Makes this process the parent of orphans below it, also of those in sessions of their own (a subreaper)."""
    ctypes.CDLL(None).prctl(CHILD_SUBREAPER, int(adopts))
