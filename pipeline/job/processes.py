"""What /proc(5) says of processes: those below one, their state, the signals that they handle."""

import contextlib
import re
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """The processes below one, whichever of its threads started them."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it ended
            for child in map(int, children.read_text().split()):
                found += [child, *descendants(child)]
    return found


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
    """`process 123 (stages.evaluate)`, or of several ranks `rank 1 (process 123)`."""
    variables = environment(pid)
    with contextlib.suppress(OSError):
        if variables.get("WORLD_SIZE", "1") != "1" and "RANK" in variables:
            return f"rank {variables['RANK']} (process {pid})"
        if module := re.search(r"\0-m\0([\w.]+)\0", Path(f"/proc/{pid}/cmdline").read_text()):
            return f"process {pid} ({module[1]})"
    return f"process {pid}"
