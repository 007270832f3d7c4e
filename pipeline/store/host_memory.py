"""Memory of this machine that the process may use, within the limits of its cgroups (v2)."""

from collections.abc import Iterator
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def total_memory() -> int:
    """Returns the bytes of host memory that this process could take if no other took any."""
    return min([_of_machine("MemTotal"), *(most for _, most in _limits())])


def free_memory() -> int:
    """Returns the bytes of host memory that this process can still take."""
    free = _of_machine("MemAvailable")
    for group, most in _limits():
        counted = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        cached = int(counted["inactive_file"]) + int(counted["active_file"])  # given up when memory is needed
        free = min(free, most - int((group / "memory.current").read_text()) + cached)
    return free


def _of_machine(name: str) -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(":") for line in lines)[name].split()[0]) * 1024


def _limits() -> Iterator[tuple[Path, int]]:
    """Yields each cgroup of this process that has a limit, and the limit in bytes."""
    own = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), "/")
    for group in (CGROUP / own.strip("/"), *(CGROUP / own.strip("/")).parents):
        limit = group / "memory.max"
        if group.is_relative_to(CGROUP) and limit.exists() and (most := limit.read_text().strip()) != "max":
            yield group, int(most)
