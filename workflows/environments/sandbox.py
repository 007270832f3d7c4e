"""Commands in a private file system without network: bubblewrap over a tmpfs of the attempt.

A holder process keeps a mount namespace with the attempt's files, which are in memory: the kernel bounds their bytes
and their number, and frees them when the holder ends. Every command then has its own namespaces (processes, network,
users, …), from which nothing outlives it, and no capability. With an image its files are an overlay over those of the
image, which stay as they are; without one it sees /usr, /etc and /opt of this machine, read-only. When this process is
root, commands have the rights of `nobody`, who owns the unpacked files of images.

Not isolated: the kernel and its faults, the machine's time, CPU beyond the limits of each process, memory that /proc
does not show (memory.py), and without an image what the user may read below /usr, /etc and /opt.
"""

import contextlib
import os
import resource
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.images import OWNER
from ouroboros.workflows.environments import memory

TOOLS = ("bwrap", "unshare", "nsenter", "prlimit")
NEEDED = "Sandboxes need Linux with user namespaces, bubblewrap (`apt-get install bubblewrap`) and util-linux."
READ_ONLY = ("/usr", "/etc", "/opt", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
NOBODY = str(OWNER)
FILES, PROCESSES = 100_000, 512  # of an attempt
OF_TESTS, DEVICES, LINKS = ("tests", "logs", "proc"), ("null", "zero", "full", "random", "urandom", "shm"), 40
SHOWN = 8192  # bytes of output at its beginning, and at its end
START_SECONDS = 30.0
NO_CUSTOMS = "/tests/.python"  # with empty modules that Python imports at its start, of PYTHONPATH's first that has one
# where the holder has the files: /sys is on every machine, and commands see nothing of it. First the layers of the
# image, with the rights to read them in the store; then, as the user of commands, files of the attempt's own
LAYERS = """
mount -t tmpfs -o size=1m,mode=755 none /sys && cd /sys && mkdir root tests logs none own layers || exit 1
while [ "$1" != -- ]; do
  mkdir layers/$1 && mount --bind -o ro "$2" layers/$1 || exit 1
  shift 2
done
shift && exec "$@"
"""
MOUNT = ('if [ "$options" ]; then mount -t overlay -o "$options" none /sys/root; '
         "else mount --bind /sys/own/files /sys/root; fi || exit 1")
HOLD = f"""
options=$3
for one in own tests logs; do
  mount -t tmpfs -o size=$1m,nr_inodes=$2,mode=755 none /sys/$one || exit 1
done
mkdir -p /sys/own/files /sys/own/work /sys/own/shm /sys/logs/verifier /sys{NO_CUSTOMS} &&
  touch /sys{NO_CUSTOMS}/sitecustomize.py /sys{NO_CUSTOMS}/usercustomize.py || exit 1
{MOUNT}
echo ready && exec cat
"""
OVERLAY = "upperdir=/sys/own/files,workdir=/sys/own/work,userxattr,lowerdir="
# what an agent left in directories of programs is taken away before verification, but for its working directory $2
PUT_BACK = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc")
PROJECT = "pyproject.toml"
UNREAD = f"cd /sys/own/files && [ -f {PROJECT} ] && [ ! -L {PROJECT} ] && ! grep -q 'pytest\\|\\\\[uUx]' {PROJECT}"
# by these at the root, above the tests, pytest, Node and Cargo find their settings, and code that they run
OF_PYTEST = ("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg")
ABOVE_TESTS = (*OF_PYTEST, PROJECT, "setup.py", "package.json", "node_modules", ".cargo")
# and an overlay makes its own files, for which the agent may have left no room (mount would repeat the owner of
# files, a number that this namespace does not have)
RESTORE = f"""
umount /sys/root && mount --options-mode ignore -o "remount,nr_inodes=$1" none /sys/own && cd /sys/own/files || exit 1
options=$2 kept=$3
shift 3
if [ -d "$kept" ] && [ "$(realpath "$kept")" = "$PWD/$kept" ]; then mv "$kept" ../kept || exit 1; else kept=; fi
rm -rf "$@" || exit 1
if [ "$kept" ]; then mkdir -p "$kept" && rmdir "$kept" && mv ../kept "$kept" || exit 1; fi
{MOUNT}
cd /sys/root || exit 1
for one in "$@"; do if [ -d "$one" ] && [ ! -L "$one" ]; then echo "$one"; fi; done
"""
# neither files nor directories: links, and what a test that reads it would wait for. /dev/shm is outside of the root
ODD = "! -type f ! -type d"
LISTED = f'chmod 755 /sys/root && find /sys/own/shm {ODD} -delete && exec find "$0" {ODD} -print0'
# process 1, as bubblewrap's own would be left to the machine's to reap; an agent may have moved the directory
INIT = ("sh", "-c", 'mkdir -p "$0" 2>/dev/null; cd "$0" 2>/dev/null; "$@"; exit "$?"')
AGENT = ("--ro-bind", "/sys/none", "/tests", "--ro-bind", "/sys/none", "/logs")  # mount points cannot be replaced
VERIFIER = ("--bind", "/sys/tests", "/tests", "--bind", "/sys/logs", "/logs")


@dataclass(frozen=True)
class Ended:
    """code: None if the command was killed at a limit, and `why` then says at which. output: standard output and error,
    cut in the middle."""

    code: int | None
    output: str
    why: str = ""


class Sandbox:
    """The files of one attempt, and commands that see them."""

    def __init__(self, storage_mb: float, memory_mb: float | None = None, cpus: float = 1.0,
                 layers: Sequence[Path] = (), user: int = 0, shown: Sequence[Path] = (),
                 mounted: Mapping[str, Path] | None = None):
        """storage_mb: of all files. memory_mb: of all processes of a command together, if that is below the limit of
        this one. cpus: CPU seconds of a process, as a multiple of its command's time. layers: directories of an image,
        the topmost last. user: number that commands see as theirs. shown: without an image, what the holder has below
        /sys/layers. mounted: directories of this machine that commands see, read-only, by their paths there; during
        verification they are not there. Raises ConfigError where this machine forbids it."""
        self._memory, self._cpus, self._as, self._user, self._layers = memory_mb, cpus, rights(), user, len(layers)
        self._read_only: list[str] = []
        below, mounted = [*shown, *layers], mounted or {}
        self._mounted = [word for place, path in enumerate(mounted, len(below))
                         for word in ("--ro-bind", f"/sys/layers/{place}", path)]
        if missing := [name for name in TOOLS if not shutil.which(name)]:
            raise ConfigError(f"there is no {missing[0]} on PATH. {NEEDED}")
        self._holder = subprocess.Popen(
            [*apart([*below, *mounted.values()]), "sh", "-c", HOLD, "sh", str(int(storage_mb)), str(FILES),
             self._overlay()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # its end is that of the holder
        found = _drain(self._holder.stdout, START_SECONDS, until=b"\n").strip()
        if found != b"ready":
            self.close()
            raise ConfigError(_refusal(found.decode(errors="replace"), bool(layers)))
        if reason := memory.refused(self._holder.pid):
            self.close()
            raise ConfigError(f"the memory of an attempt cannot be watched: {reason}. Root needs CAP_SYS_PTRACE.")

    def run(self, command: Sequence[str], seconds: float, cwd: str = "/", variables: Mapping[str, str] | None = None,
            verifies: bool = False, stdin: IO | int = subprocess.DEVNULL, descriptors: Sequence[int] = ()) -> Ended:
        """Runs a command and ends everything that it started. verifies: whether it sees /tests and /logs. descriptors:
        that it inherits."""
        end = time.monotonic() + seconds
        with self.started(command, seconds, cwd, variables or {}, verifies, stdin, descriptors) as (process, beyond):
            output, code = _drain(process.stdout, seconds), None
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(max(end - time.monotonic(), 0))
        why = "" if code is not None else f"timed out after {seconds:g} s"
        if held := beyond.result():
            code, why = None, (f"had {held / 2**20:.0f} MiB of memory, all processes together, beyond the limit of "
                               f"{self._most() / 2**20:.0f} MiB")
        return Ended(code, output.decode(errors="replace"), why)

    @contextlib.contextmanager
    def started(self, command: Sequence[str], seconds: float, cwd: str, variables: Mapping[str, str], verifies: bool,
                stdin: IO | int, descriptors: Sequence[int] = ()) -> Iterator[tuple[subprocess.Popen, Any]]:
        """A command of `run` while the block runs, and what `memory.Namespace.watched` yields."""
        about, write = os.pipe()
        with open(about) as about, _set(variables) as given, subprocess.Popen(
                [*self._inside(), *self._confined(verifies), "--args", str(given.fileno()), "--info-fd", str(write),
                 "--", *INIT, cwd, *self._limited(seconds), *command],
                stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                pass_fds=[write, given.fileno(), *descriptors]) as process:
            os.close(write)
            with memory.Namespace(about) as inside, inside.watched(self._most()) as beyond:
                try:
                    yield process, beyond
                finally:
                    if process.poll() is None:
                        inside.kill()  # bubblewrap ends once all processes have

    def restore(self, names: Sequence[str], workdir: str) -> None:
        """Puts directories of the image's root, and what is ABOVE_TESTS there, back, read-only for verification; the
        working directory stays as it is, and where that is the root only what pytest reads is put back. Without an
        image deletes the latter. Raises OSError."""
        kept, above = workdir.strip("/"), ABOVE_TESTS
        if not kept:  # a project may be what the task asks for
            unread = subprocess.run([*self._inside(), "sh", "-c", UNREAD], check=False).returncode == 0
            above = OF_PYTEST if unread else (*OF_PYTEST, PROJECT)
        changed = [name for name in (*(names if self._layers else ()), *above) if name != kept]
        kept = kept if kept.partition("/")[0] in changed else "-"
        ended = subprocess.run([*self._inside(), "sh", "-c", RESTORE, "sh", str(2 * FILES), self._overlay(), kept,
                                *changed], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise OSError(f"the files of the image could not be put back: {ended.stderr.strip()[-300:]}")
        self._read_only = [word for name in ended.stdout.split() for word in (
            "--ro-bind", f"/sys/root/{name}", f"/{name}")]
        if kept != "-":
            self._read_only += ["--bind-try", f"/sys/root/{kept}", f"/{kept}"]

    def unlink(self) -> None:
        """Deletes links of the attempt that lead to the tests, to what they write or into processes, as a result that
        is a link to the expected one would equal it, and pipes, sockets and devices, for which a test that reads its
        result would wait; in /dev/shm all of these. Gives the root its rights again. Raises OSError."""
        root, own = Path(f"/proc/{self._holder.pid}/root/sys/root"), "/sys/own/files/"
        # in the holder's namespaces, where no mode of a directory hides what is in it
        found = subprocess.run([*self._inside(), "sh", "-c", LISTED, own], stdin=subprocess.DEVNULL,
                               capture_output=True, check=False)
        if found.returncode:
            raise OSError(f"links and pipes of the attempt could not be listed: {os.fsdecode(found.stderr)[-300:]}")
        for place in (Path(one.removeprefix(own)) for one in os.fsdecode(found.stdout).split("\0")[:-1]):
            if not (root / place).is_symlink() or _leads_to(place, root) in OF_TESTS:
                (root / place).unlink(missing_ok=True)

    def _inside(self) -> list[str]:
        return [*self._as, "nsenter", f"--target={self._holder.pid}", "--user", "--mount", "--preserve-credentials",
                "--"]

    def _overlay(self) -> str:
        """Returns the options of the mount of an image's layers below the attempt's files; empty without layers."""
        lower = ":".join(f"/sys/layers/{place}" for place in reversed(range(self._layers)))
        return OVERLAY + lower if lower else ""

    def close(self) -> None:
        """Frees the files."""
        self._holder.kill()
        self._holder.communicate()

    def _files(self, verifies: bool) -> list[str]:
        seen = self._read_only if self._layers else [
            word for path in READ_ONLY if os.path.exists(path) for word in ("--ro-bind", path, path)]
        return ["--bind", "/sys/root", "/", *seen, "--proc", "/proc", "--dev", "/dev",
                "--bind", "/sys/own/shm", "/dev/shm", "--remount-ro", "/dev",
                *(VERIFIER if verifies else (*AGENT, *self._mounted))]

    def _confined(self, verifies: bool) -> list[str]:
        user = "0" if verifies else str(self._user)
        return ["bwrap", "--unshare-all", "--as-pid-1", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
                "--uid", user, "--gid", user, "--hostname", "task", *self._files(verifies), "--chdir", "/",
                "--clearenv"]

    def _limited(self, seconds: float) -> list[str]:
        most = self._most()
        return ["prlimit", f"--cpu={max(int(seconds * self._cpus), 1)}", "--core=0", f"--nproc={PROCESSES}",
                *([f"--data={most}"] if most >= 0 else []), "--"]

    def _most(self) -> int:
        """Bytes of memory that a command may have; -1: not limited."""
        own = resource.getrlimit(resource.RLIMIT_DATA)[1]
        wanted = int(self._memory * 2**20) if self._memory else own
        return min(wanted, own) if own >= 0 else wanted


@contextlib.contextmanager
def _set(variables: Mapping[str, str]) -> Iterator[IO[bytes]]:
    """A file of arguments that set variables, which may be keys: every user of the machine reads those of a process."""
    with tempfile.TemporaryFile() as made:
        made.write(b"".join(os.fsencode(f"--setenv\0{name}\0{value}\0") for name, value in variables.items()))
        made.seek(0)
        yield made


def _refusal(said: str, has_image: bool) -> str:
    """What a holder that did not begin lacks. said: what it said first, empty where it said nothing in time."""
    said = said.strip().partition("\n")[0].rstrip(".")  # mount may add that dmesg(1) has more
    if said.startswith("unshare:"):
        return f"user namespaces are not allowed: {said}. {NEEDED}"
    needed = ("Attempts in images need overlays in user namespaces: Linux 6.6, and layers on a file system that an "
              "overlay may lie on.") if has_image else NEEDED
    return f"the files of an attempt were not mounted: {said or f'no answer in {START_SECONDS:g} s'}. {needed}"


@cache
def require() -> None:
    """Raises ConfigError where commands cannot be confined on this machine."""
    sandbox = Sandbox(1)
    try:
        ended = sandbox.run(["true"], START_SECONDS)
    finally:
        sandbox.close()
    if ended.code != 0:
        raise ConfigError(f"bwrap cannot confine a command: {ended.output.strip()}. {NEEDED}")


def rights() -> list[str]:
    """What commands are started through, so that they never have root's rights."""
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"] if os.geteuid() == 0 else []


def apart(layers: Sequence[Path]) -> list[str]:
    """Returns what the holder is started through: a mount namespace with these directories below /sys/layers, and in
    it one of the user whose rights commands have."""
    placed = [word for place, path in enumerate(layers) for word in (str(place), str(path.absolute()))]
    begin = ["sh", "-c", LAYERS, "sh", *placed, "--"]
    inner = ["unshare", "--user", "--map-root-user", "--mount", "--"]
    outer = ["unshare", "--mount", "--"] if os.geteuid() == 0 else inner
    return [*outer, *begin, *(rights() + inner if os.geteuid() == 0 else [])]


def _leads_to(place: Path, root: Path) -> str:
    """Returns the directory of the root that a path below it ends in, links followed as commands see them; `proc` for
    the devices that lead there, and for more links than the kernel follows."""
    left, at, followed = [*reversed(place.parts)], Path(), 0
    while left:
        name = left.pop()
        if name == "..":
            at = at.parent
        elif name not in ("", ".", "/"):
            at = at / name
            if at.parts[0] in OF_TESTS:
                return at.parts[0]
            if at.parts[0] == "dev" and len(at.parts) > 1 and at.parts[1] not in DEVICES:
                return "proc"
            if (root / at).is_symlink():
                target, followed = os.readlink(root / at), followed + 1
                at = Path() if target.startswith("/") else at.parent
                left += reversed(target.split("/"))
            if followed > LINKS:
                return "proc"
    return at.parts[0] if at.parts else ""


def _drain(pipe: IO[bytes], seconds: float, until: bytes | None = None) -> bytes:
    """What is written to a pipe, without its middle, until its end, `until`, or the time is over."""
    deadline, begin, end, total = time.monotonic() + seconds, b"", b"", 0
    ready = select.poll()
    ready.register(pipe, select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        data = os.read(pipe.fileno(), 1 << 16) if left > 0 and ready.poll(1000 * left) else b""
        begin, rest = begin + data[:SHOWN - len(begin)], data[max(SHOWN - len(begin), 0):]
        end, total = (end + rest)[-SHOWN:], total + len(data)
        if not data or (until and until in data):
            cut = total - len(begin) - len(end)
            note = f"\n… ({cut} bytes) …\n".encode() if cut else b""
            return begin + note + end
