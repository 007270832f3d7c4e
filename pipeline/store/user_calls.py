"""Which functions of the user the processes of a child are calling, in a file that tells after a process has ended.

Each process (a rank) has a slot of SLOT bytes, written at once: nothing before it starts to work, the names of the
calls, one a line, while it works, or DONE. A process without its own slot writes nothing.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SLOT = 1024  # bytes: a reader never sees a part of it
ASK = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT}  # to end
DONE, WORKS = b"done\n", b"works\n"  # the first line of a slot

_lock = threading.Lock()  # a batch is prepared in its own thread
_calls: list[str] = []
_place: tuple[int, int] | None = None  # file descriptor and offset
_kept = False
_signals: tuple[int, int] | None = None  # a pipe into which Python writes the number of each signal as it arrives


def open_slot(path: Path, rank: int) -> None:
    """From here on this process writes what it calls into the slot of its rank."""
    global _place, _kept, _signals
    _place, _kept = (os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC), rank * SLOT), False
    if _signals is None:
        _signals = os.pipe()
        for end in _signals:
            os.set_blocking(end, False)
        signal.set_wakeup_fd(_signals[1], warn_on_full_buffer=False)
    _calls.clear()
    _write(WORKS)


def done() -> None:
    """Says that the process has done its work, or tells itself why not: it is in no call any more."""
    global _kept
    _kept = True
    _write(DONE)


def keep() -> None:
    """Leaves the slot as it is: the process was asked to end, maybe by what it calls."""
    global _kept
    _kept = True


@contextmanager
def calling(name: str) -> Iterator[None]:
    """Says that the process calls a function of the user in the block."""
    _arrived()
    _change(_calls.append, name)
    try:
        yield
    finally:
        if _arrived():  # in this call; the main thread, which is asked to end, may be at work for long
            keep()
        _change(_calls.remove, name)


def _arrived() -> bool:
    """Whether signals came since the last question that ask to end, or are on their way to the main thread."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ASK)  # of this thread: sigpending names what is blocked alone
    numbers = [*signal.sigpending()]
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with suppress(BlockingIOError):
        numbers += os.read(_signals[0], SLOT) if _signals else b""
    return not ASK.isdisjoint(numbers)


def _change(change, name: str) -> None:
    with _lock:
        change(name)
        if not _kept:
            _write(WORKS + "\n".join(_calls).encode())


def _write(state: bytes) -> None:
    if _place:
        os.pwrite(_place[0], state[: SLOT - 1].ljust(SLOT - 1) + b"\n", _place[1])


def unfinished(path: Path, rank: int | None = None) -> list[str] | None:
    """Returns what a process was calling that has ended before its work was done; None if it was done, or never began.

    rank: None: any process of the file.
    """
    try:
        written = path.read_bytes()
    except FileNotFoundError:
        return None
    slots = [written[begin : begin + SLOT] for begin in range(0, len(written), SLOT)]
    working = [slot for slot in (slots if rank is None else slots[rank : rank + 1]) if slot.startswith(WORKS)]
    names = [name for slot in working for name in slot.decode(errors="ignore").split("\n")[1:]]
    return list(dict.fromkeys(filter(None, map(str.strip, names)))) if working else None


def _forget() -> None:
    """A copy of the process, made by a function of the user or a library, says nothing."""
    global _place, _lock, _signals
    _place, _lock = None, threading.Lock()
    if _signals is not None:
        signal.set_wakeup_fd(-1)  # the pipe is that of the process that was copied
        _signals = None


os.register_at_fork(after_in_child=_forget)
