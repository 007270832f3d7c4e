"""Ties the life of a process to that of its parent, and bounds its memory."""

import ctypes
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    """Makes this process the parent of orphans below it, also of those in their own sessions (a subreaper)."""
    ctypes.CDLL(None).prctl(CHILD_SUBREAPER, int(adopts))


@contextmanager
def limited_memory(most: int = 2 << 30) -> Iterator[None]:
    """Raises MemoryError in its block where the process asks for that many bytes of addresses more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = [one for one in (used + most, soft, hard) if one != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
