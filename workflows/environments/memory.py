"""Watches the memory that the processes of one command hold together, and ends them beyond a limit.

RLIMIT_DATA bounds what a process has of its own, at once, but neither shared memory nor many processes. So the kernel's
figures in /proc are read every LOOK_SECONDS, and more seldom where reading takes long:

    memory = sum of Pss_Anon and SwapPss of all processes + all objects of shared memory, each once

(Linux, Documentation/filesystems/proc.rst; a page that n processes have in common since a fork counts 1/n in each.) An
object of shared memory (memfd, MAP_SHARED | MAP_ANONYMOUS, System V) has no name in a file system. It counts with its
pages where a process has it open, else up to the last byte that is mapped: its pages stay after a process unmapped or
never touched them. Pages of files count elsewhere: those of an attempt are bounded with its files.
"""

import contextlib
import json
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import IO, NamedTuple, Self

LOOK_SECONDS = 0.2
SHARE = 4  # the pause after a look lasts at least this many times as long as the look
AGAIN, AGAIN_SECONDS = 2, 0.02  # processes change while they are looked at: as many further looks must agree
RESIDENT, PROPORTIONAL = ("RssAnon", "VmSwap"), ("Pss_Anon", "SwapPss")


class Namespace:
    """The processes of a command, by the first of them, with which all others end."""

    def __init__(self, about: IO[str] | int):
        """about: its number, or what bubblewrap writes of the process that it started, nothing where it could not."""
        self._pid, self._process = 0, None
        with contextlib.suppress(ValueError, ProcessLookupError):  # it ended at this moment
            self._pid = about if isinstance(about, int) else json.load(about)["child-pid"]
            self._process = os.pidfd_open(self._pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error) -> None:
        if self._process is not None:
            os.close(self._process)

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)

    @contextlib.contextmanager
    def watched(self, most: int) -> Iterator[Future]:
        """While the block runs, kills the processes once they hold more than `most` bytes; a negative number is no
        limit. Yields what will be the bytes that were found, 0 if they never did, or the error of looking."""
        ended = threading.Event()
        with ThreadPoolExecutor(1) as one:
            try:
                yield one.submit(self._watch, most, ended)
            finally:
                ended.set()

    def _watch(self, most: int, ended: threading.Event) -> int:
        pause, beyond = LOOK_SECONDS, 0
        while most >= 0 and not ended.wait(pause):
            begin = time.monotonic()
            held = self.held(most)
            beyond = beyond + 1 if held > most else 0
            if beyond > AGAIN:
                self.kill()
                return held
            pause = AGAIN_SECONDS if beyond else max(LOOK_SECONDS, SHARE * (time.monotonic() - begin))
        return 0

    def processes(self) -> int:
        """How many there are; quick also where there are thousands."""
        return sum(name.isdigit() for name in _listed(self._place()))

    def _place(self) -> str:
        """Their /proc; empty while that is the one of the machine, and once they ended."""
        place = f"/proc/{self._pid}/root/proc"
        with contextlib.suppress(OSError):
            return place * (os.stat(place).st_dev != os.stat("/proc").st_dev)
        return ""

    def held(self, most: int) -> int:
        """Bytes that the processes hold, exact if above `most`, else at most that; 0 before they have a /proc."""
        if not (place := self._place()):
            return 0
        living = list(filter(None, (_living(f"{place}/{name}") for name in _listed(place) if name.isdigit())))
        shared = sum(_objects([one.place for one in living]).values())
        # each page counts in every process that has it: quick to read, and never less than the exact figure
        if (quick := shared + sum(one.resident for one in living)) <= most:
            return quick
        return shared + sum(_exact(one) for one in _without_doubles(living, place))


class Living(NamedTuple):
    """A process. place: the directory of a thread of it that has not ended, as its first may before others."""

    place: str
    number: str
    parent: str
    addresses: str
    resident: int  # its own bytes, with pages that it has in common with others since a fork


def refused(pid: int) -> str | None:
    """Why the memory of a process may not be read, or None."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            file.read()
    except PermissionError as error:
        return str(error)
    except OSError:  # it begins another program at this moment
        pass
    return None


def _living(process: str) -> Living | None:
    """None: it ended."""
    for thread in _listed(f"{process}/task"):
        about = _fields(f"{process}/task/{thread}/status")
        if RESIDENT[0] in about:
            return Living(f"{process}/task/{thread}", about["Tgid"], about["PPid"], about["VmSize"],
                          _bytes(about, RESIDENT))
    return None


def _exact(one: Living) -> int:
    about = _fields(f"{one.place}/smaps_rollup")
    return _bytes(about, PROPORTIONAL) if PROPORTIONAL[0] in about else one.resident  # it ended, or hides it


def _without_doubles(living: list[Living], place: str) -> list[Living]:
    """Leaves out processes that vfork began and that have no program of their own yet: their memory is the parent's, of
    which one thread waits for each, uninterruptible (D), until they have one."""
    children, kept = defaultdict(list), list(living)
    for one in living:
        children[one.parent, one.addresses, one.resident].append(one)
    for one in living:
        same = children.get((one.number, one.addresses, one.resident), ())
        threads = _listed(f"{place}/{one.number}/task") if same else ()
        states = [_fields(f"{place}/{one.number}/task/{thread}/status").get("State", "") for thread in threads]
        for child in same[:sum(state.startswith("D") for state in states)]:
            kept.remove(child)
    return kept


def _fields(place: str) -> dict[str, str]:
    """What a file says line by line, `name: text`."""
    return {name: text.strip() for name, _, text in (line.partition(":") for line in _read(place).splitlines())}


def _bytes(about: dict[str, str], names: tuple[str, ...]) -> int:
    return 1024 * sum(int(about[name].split()[0]) for name in names if name in about)


def _objects(threads: Iterable[str]) -> dict[int, int]:
    """Inode -> bytes of the objects of shared memory that threads have."""
    device = _device()
    mark, mapped, opened = f"{os.major(device):02x}:{os.minor(device):02x}", {}, {}
    for thread in threads:
        for line in _read(f"{thread}/maps").splitlines():
            area, _, offset, on, inode = line.split(None, 5)[:5]
            if on == mark:
                first, last = (int(edge, 16) for edge in area.split("-"))
                mapped[int(inode)] = max(mapped.get(int(inode), 0), int(offset, 16) + last - first)
        for number in _listed(f"{thread}/fd"):
            with contextlib.suppress(OSError):
                about = os.stat(f"{thread}/fd/{number}")
                if about.st_dev == device:
                    opened[about.st_ino] = 512 * about.st_blocks
    return mapped | opened


@cache
def _device() -> int:
    """The device of objects of shared memory."""
    descriptor = os.memfd_create("ouro")
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)


def _listed(place: str) -> list[str]:
    """The names of a directory of a process; none of a process that ended, or hides it."""
    with contextlib.suppress(OSError):
        return os.listdir(place)
    return []


def _read(place: str) -> str:
    """The text of a file of a process; empty for one that ended, or hides it."""
    with contextlib.suppress(OSError), open(place, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""
