"""Programs of replies in processes apart, and the lines of JSON that go between them, their tests and this process.

Where user namespaces are allowed each process is a command of a Sandbox, else confined by Landlock and seccomp alone
(confinement.py). What is sent to a program never says what is expected of it.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ouroboros.pipeline.store.errors import ConfigError, StageError
from ouroboros.workflows.environments import assertions, confinement, inside
from ouroboros.workflows.environments.sandbox import READ_ONLY, Sandbox

WALL = 10  # seconds for each CPU second: what another program on the machine takes away decides nothing
SCRATCH_MB = 64  # of files of a program
SEEN = (*(path for path in READ_ONLY if path not in ("/etc", "/opt")), "/etc/alternatives", "/etc/ld.so.cache")
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
PYTHON, PREFIX, STANDARD = (Path(os.path.realpath(sys._base_executable)), Path(os.path.realpath(sys.base_prefix)),
                            Path(os.path.realpath(sysconfig.get_path("stdlib"))))
VARIABLES = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8",
             "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
LOADED = """import sys, types
for name, text in zip(sys.argv[3::2], sys.argv[4::2]):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
module.main(*sys.argv[1:3])"""
MODULES = [word for one in (confinement, assertions, inside) for word in (one.__name__, Path(one.__file__).read_text())]


class Cell(Sandbox):
    """A sandbox of single processes that see Python, these packages and their own /tmp: nothing is kept."""

    def __init__(self, memory_mb: float, packages: Sequence[Path] = ()):
        self._packages = [word for place, path in enumerate(packages, 1)
                          for word in ("--ro-bind", f"/sys/layers/{place}", str(path))]
        super().__init__(SCRATCH_MB, memory_mb, shown=[PREFIX, *packages])

    def _files(self, verifies: bool) -> list[str]:
        seen = [word for path in SEEN if os.path.exists(path) for word in ("--ro-bind", path, path)]
        shown = ["--ro-bind", "/sys/layers/0", str(PREFIX)] * (not PREFIX.is_relative_to("/usr"))
        hidden = [word for path in _packages() for word in ("--ro-bind", "/sys/none", str(path))]
        return [*seen, *shown, *hidden, "--perms", "1777", "--size", str(SCRATCH_MB * 2**20), "--tmpfs", "/tmp",
                *self._packages, "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev", "--remount-ro", "/"]


class Unconfined:
    """Commands of this user, without a sandbox around them."""

    @contextlib.contextmanager
    def started(self, command: Sequence[str], seconds: float, cwd: str, variables: dict[str, str], verifies: bool,
                stdin: int) -> Iterator[tuple[subprocess.Popen, None]]:
        with subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=variables,
                              cwd=cwd, start_new_session=True) as process:
            try:
                yield process, None
            finally:
                os.killpg(process.pid, signal.SIGKILL)  # it is waited for only later, so the number is still its own


class Peer:
    """A process that answers lines with lines, until a time (`time.monotonic`)."""

    def __init__(self, process: subprocess.Popen, until: float):
        self._in, self._out, self._until, self._read = process.stdin, process.stdout, until, b""
        os.set_blocking(self._in.fileno(), False)

    def ask(self, line: bytes) -> bytes:
        """Returns the answer to a line; empty where the process ended, or answers without an end. Raises
        TimeoutError."""
        with contextlib.suppress(BrokenPipeError):
            while line:
                self._wait(self._in, select.POLLOUT)
                line = line[os.write(self._in.fileno(), line[:select.PIPE_BUF]):]
        while b"\n" not in self._read:
            self._wait(self._out, select.POLLIN)
            part = os.read(self._out.fileno(), 1 << 16)
            self._read += part
            if not part or len(self._read) > 2 * inside.LARGEST:
                return b""
        answer, _, self._read = self._read.partition(b"\n")
        return answer + b"\n"

    def _wait(self, pipe: Any, event: int) -> None:
        ready = select.poll()
        ready.register(pipe, event)
        if not ready.poll(1000 * max(self._until - time.monotonic(), 0)):
            raise TimeoutError("the wall time of a program, ten times its CPU seconds, is over: it waits, or the "
                               "machine has too much else to do")


@cache
def cell(isolation: str, memory_mb: int) -> Cell | Unconfined:
    """What starts processes. Raises ConfigError where this machine does not isolate so."""
    if isolation == "none":
        return Unconfined()
    if isolation in ("auto", "namespaces"):
        try:
            one = Cell(memory_mb)
            atexit.register(one.close)
            return one
        except ConfigError as error:
            if isolation == "namespaces":
                raise
            refused = str(error)
    else:
        refused = "user namespaces are not asked for."
    if os.uname().machine == confinement.MACHINE and confinement.landlock_version() > 0:
        return Unconfined()
    raise ConfigError(f"{refused} Without them code_reward needs Landlock (Linux 5.13 or newer, not forbidden by a "
                      "container) on x86-64. Install bubblewrap and allow user namespaces, or, where programs may do "
                      "all that you may, set reward_fn_args: {isolation: none}.")


@cache
def _packages() -> list[Path]:
    """Directories of packages, which may have tests and solutions."""
    places = {STANDARD, Path("/usr/lib/python3"), *Path("/usr/local/lib").glob("python3*")}
    return [one for place in places for name in ("site-packages", "dist-packages") if (one := place / name).is_dir()]


def _readable() -> list[str]:
    """What a program may read where nothing hides the file system from it: libraries without packages."""
    places = [one for place in {*map(Path, LIBRARIES), PREFIX / "lib", STANDARD} if place.is_dir()
              for one in place.iterdir() if not one.name.startswith(("python", "site-packages", "dist-packages"))]
    return [str(one) for one in (*places, STANDARD, Path("/usr/share/zoneinfo"), Path("/etc/ld.so.cache"))
            if one.exists()]


@contextlib.contextmanager
def peer(role: str, about: dict, cpu: int, memory_mb: int, isolation: str) -> Iterator[Peer]:
    """A process of inside.py that is ready. about: what it begins with. Raises StageError where it does not start."""
    starts = cell(isolation, memory_mb)
    limits = {"cpu": cpu, "memory": memory_mb * 2**20, "filters": isolation != "none",
              "readable": _readable() if isinstance(starts, Unconfined) and isolation != "none" else None}
    command = [str(PYTHON), "-s", "-S", "-P", "-c", LOADED, role, json.dumps(limits), *MODULES]
    with starts.started(command, WALL * cpu, "/", VARIABLES, False, subprocess.PIPE) as (process, _):
        one = Peer(process, time.monotonic() + WALL * cpu)
        if (said := one.ask(json.dumps(about).encode() + b"\n")) != inside.READY:
            raise StageError(f"a process for a program did not start: {said.decode(errors='replace')}")
        yield one
