"""What /proc(5) says of processes, those below one and their state, and the end of a whole tree."""

import contextlib
import math
import os
import re
import signal
import time
from pathlib import Path


def children(pid: int) -> list[int]:
    """The processes right below one, whichever of its threads started them."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    return found


def descendants(pid: int) -> list[int]:
    """The processes below one, on all levels."""
    return [one for child in children(pid) for one in (child, *descendants(child))]


def end_below(pid: int, seconds: float = math.inf) -> None:
    """Stops a process, and kills all below it, except this one; for at most so long. It could start more meanwhile."""
    deadline = time.monotonic() + seconds
    os.kill(pid, signal.SIGSTOP)
    while alive := [one for one in descendants(pid) if one != os.getpid() and state(one) not in ("Z", "X")]:
        for one in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        if time.monotonic() > deadline:
            return
        time.sleep(0.001)


def stopped(pids: list[int]) -> list[int]:
    """Those that do nothing until they get SIGCONT."""
    return [pid for pid in pids if state(pid) in ("T", "t")]


def state(pid: int) -> str:
    """The state of a process as in ps, `T` for a stopped one, `Z` for one that ended; `X` once it is gone."""
    return status(pid, "State") or "X"


def status(pid: int, key: str) -> str:
    """The first word of a line of /proc/PID/status; empty once the process is gone."""
    with contextlib.suppress(OSError):
        found = re.search(rf"^{key}:\s*(\S+)", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"), re.M)
        return found[1] if found else ""
    return ""


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty once it is gone, or if it is another user's."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        return dict(one.partition("=")[::2] for one in text.split("\0"))
    return {}


def called(pid: int) -> str:
    """`process 123 (ouroboros.stages.evaluate)`, or of several ranks `rank 1 (process 123)`."""
    variables = environment(pid)
    with contextlib.suppress(OSError):
        if variables.get("WORLD_SIZE", "1") != "1" and "RANK" in variables:
            return f"rank {variables['RANK']} (process {pid})"
        if module := re.search(r"\0-m\0([\w.]+)\0", Path(f"/proc/{pid}/cmdline").read_text()):
            return f"process {pid} ({module[1]})"
    return f"process {pid}"
