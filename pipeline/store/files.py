"""Atomic files, hashes and locks, for processes that share a disk.

A file is either complete or absent: written under a temporary name in the same directory, flushed to the disk, renamed.
A directory is complete when its `manifest.json`, written last, exists; readers ignore those without. A JSON object ends
with the hash of its text, so that a changed digit is noticed; those of older releases have none, and pass.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any

from ouroboros.pipeline.store.errors import DataError, StageError
from ouroboros.pipeline.store.foreign_text import escaped

MANIFEST = "manifest.json"
CHECKSUM = "sha256_of_the_rest"  # the last key of a JSON object that we write, its first 16 hex digits
HOME = Path(__file__).resolve().parents[2]  # a checkout or the installed package: our packages, Snakefile, conf/
PACKAGE = Path(__file__).absolute().parents[2]  # `ouroboros`, whose folders are links to those of a checkout
CONF = HOME / "conf"  # configuration files shipped with the code
TEMPLATES = HOME / "pipeline" / "templates"


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Calls `write(temporary path)` and renames the result to `path`. Leaves nothing behind on failure."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write(temporary)
            flush_to_disk(temporary)
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns a full or read-only file system below `path` into a StageError within the block."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        place = error.filename or path
        raise StageError(f"{place} cannot be written: {lack(path, error.errno)}. Nothing half-written was kept. "
                         f"{ROOM}; then run the same command again.") from error


ROOM = ("Make room there (`ouro gc` lists what no run needs in store/) or have it mounted for writing, or set "
        "checkpoint_root_dir to a directory of another file system")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
NO_FLUSH = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF)  # of a directory
NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)


def lack(path: Path, code: int = 0, least: int = 0) -> str:
    """Returns what the file system of a path has too little of, and where it is mounted; empty if nothing.

    code: of the error that it gave, in FULL. least: bytes, of which fewer are too few.
    """
    place = next(one for one in (Path(path).absolute(), *Path(path).absolute().parents) if one.exists())
    found, mounted = os.statvfs(place), next(one for one in (place, *place.parents) if os.path.ismount(one))
    kinds = [line.split()[2] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
             if line.split()[1] == str(mounted)]
    where, room = f"{mounted} ({kinds[-1] if kinds else 'unknown type'})", found.f_frsize * found.f_bavail
    if code == errno.EROFS or found.f_flag & os.ST_RDONLY:
        return f"the file system {where} is read-only"
    if code == errno.EDQUOT:
        return f"your quota of the file system {where} is used up, of space or of files"
    if found.f_files and not found.f_favail:
        return (f"no inode is left on the file system {where}: it has all the {found.f_files:,} files that it can "
                f"hold, with {room / 2**20:.0f} MiB free")
    if code == errno.ENOSPC or room < least:
        return f"no space left on the file system {where}, {room / 2**20:.1f} MiB are free"
    return ""


def write_json(path: Path, value: object) -> None:
    """Writes JSON atomically, as `json_text`."""
    write_atomic(path, lambda temporary: temporary.write_text(json_text(value), encoding="utf-8"))


def write_json_if_new(path: Path, value: object) -> None:
    """As `write_json`, unless the file has this content; again if a stage that starts there removed the temporary file
    as a leftover (remove_leftovers)."""
    if path.exists() and path.read_bytes() == json_text(value).encode():
        return
    try:
        write_json(path, value)
    except FileNotFoundError:
        write_json(path, value)


def json_text(value: object) -> str:
    """Returns JSON with sorted keys, so that equal values give equal files. An object has its CHECKSUM at the end."""
    body = (text := escaped(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)) + "\n").removesuffix(_END)
    return text if body == text else f'{body},\n "{CHECKSUM}": "{hash_text(text)}"{_END}'


_END, _LAST = "\n}\n", re.compile(r',\n ".*": "(.*)"\n\}\n\Z')  # of an object that is not empty; its last text


def require_plain(path: Path, named: str) -> Path:
    """Returns a path that exists; raises DataError unless it is a file or a directory: reading a named pipe, a socket,
    a terminal or a device may never end. named: the option or setting, and its value."""
    if not path.exists() and not path.is_symlink():
        raise DataError(f"{named} does not exist (looked from {Path.cwd()}).")
    if not path.is_file() and not path.is_dir():
        kind = "a link that leads nowhere" if path.is_symlink() and not path.exists() else "a pipe, socket or device"
        raise DataError(f"{named} is {kind}; needed a file or a directory. Write its content to a file first.")
    return path


def require_file(path: Path, named: str) -> Path:
    """Does the same, and raises DataError for a directory."""
    if require_plain(path, named).is_dir():
        raise DataError(f"{named} is a directory; needed a file.")
    return path


class Read(dict):
    """The object in a JSON file: asked for a key that is absent, raises StageError with the file's name."""

    def __init__(self, value: dict, path: Path, again: str):
        super().__init__(value)
        self._place = path, again

    def __missing__(self, key: str):
        raise StageError(f"{self._place[0]} is not what was written: it has no '{key}'. {self._place[1]}")


def read_json(path: Path, again: str = "Delete it and run the same command again.", kind: type = dict) -> Any:
    """Reads a JSON file, without its CHECKSUM; raises StageError with the file's name where it is not what was written.

    again: how to have it again. kind: of the value, dict or list.
    """
    if Path(path).exists() and not Path(path).is_file():  # reading a pipe may never end
        raise StageError(f"{path} is not a file. {again}")
    try:
        text = Path(path).read_text(encoding="utf-8")
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # invalid JSON, or not text
        raise StageError(f"{path} is not valid JSON ({error}). {again}") from error
    if not isinstance(value, kind):
        raise StageError(f"{path} is not what was written: a JSON {type(value).__name__}, not {kind.__name__}. {again}")
    if isinstance(value, dict):
        last, ours = _LAST.search(text), value.pop(CHECKSUM, None) is not None
        if ours != bool(last and hash_text(text[: last.start()] + _END) == last[1]):  # or the hash's own key is another
            raise StageError(f"{path} is damaged: its text has another sha256 than was written. {again}")
    return Read(value, path, again) if kind is dict else value


def in_store(directory: str | Path, root: str | Path) -> bool:
    """Returns whether a directory belongs to a stage below `root`; false for a user's own model directory."""
    return Path(directory).parent == Path(root) / "store"


def inputs_of(stage: Path) -> dict[str, Path]:
    """Returns role -> directory that a stage reads; those of its own store are where that is now."""
    spec = read_json(stage / "stage.json")
    return {role: stage.parent / Path(one).name if in_store(one, spec["root"]) else Path(one)
            for role, one in spec["inputs"].items()}


def is_complete(directory: Path) -> bool:
    """Returns whether a directory has its manifest."""
    return (Path(directory) / MANIFEST).exists()


@contextlib.contextmanager
def new_directory(path: Path, flush: bool = True) -> Iterator[Path]:
    """Yields a temporary directory, renamed to `path` atomically if the block succeeds and wrote a manifest.

    flush: its files to the disk before.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with explained(path):
            temporary.mkdir(parents=True)
            yield temporary
            assert is_complete(temporary), f"no manifest written in {temporary}"
            if flush:
                flush_tree(temporary)
            remove_tree(path)  # an incomplete leftover without a manifest, or an earlier launch
            os.replace(temporary, path)
            if flush:
                flush_to_disk(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_tree(directory: Path) -> None:
    """Deletes a directory, if it exists. An interruption leaves a temporary name, never a part that has a manifest."""
    temporary = directory.with_name(f".{directory.name}.{os.getpid()}.old.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        directory.rename(temporary)
        shutil.rmtree(temporary)


def link(source: Path, target: Path) -> None:
    """Gives a file a second name, in a directory that is made if need be; where there are no hard links, copies it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        shutil.copyfile(source, target)


def link_files(source: Path, target: Path) -> None:
    """Does the same with every file below a directory, its manifest last: one that is deleted meanwhile gives none.
    Unlike shutil.copytree it raises the first OSError itself."""
    for path in sorted(source.rglob("*"), key=lambda one: one == source / MANIFEST):
        if not path.is_dir():
            link(path, target / path.relative_to(source))


def flush_tree(directory: Path) -> None:
    """Flushes a directory and all below it: after a power loss the renamed directory must not be empty."""
    for path in (Path(directory), *Path(directory).rglob("*")):
        if path.is_file() or path.is_dir():
            flush_to_disk(path)


def flush_to_disk(path: Path) -> None:
    """Flushes a file, or the names in a directory where the file system can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not path.is_dir() or error.errno not in NO_FLUSH:
            raise
    finally:
        os.close(descriptor)


def remove_leftovers(directory: Path) -> None:
    """Deletes temporary files and directories that a killed process left anywhere below `directory`."""
    for path in list(Path(directory).rglob(".*.tmp")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def remove_leftovers_of(path: Path) -> None:
    """Deletes temporary files of one file, and SQLite's next to them. Its lock must be held."""
    for left in path.parent.glob(f".{path.name}.*.tmp*"):
        left.unlink(missing_ok=True)


def hash_text(text: str) -> str:
    """Returns the first 16 hex digits of the sha256 of a text."""
    return hashlib.sha256(escaped(text).encode()).hexdigest()[:16]


def hash_json(value: object) -> str:
    """Returns the first 16 hex digits of the sha256 of a JSON value, independent of key order."""
    return hash_text(json.dumps(value, sort_keys=True, ensure_ascii=False))


def hash_file(path: Path) -> str:
    """Returns the first 16 hex digits of the sha256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def stamp(path: Path) -> str:
    """Returns what changes with a file's content: inode, size, times. Includes the change time, because a copy that
    preserves the modification time (cp -p, rsync, tar) cannot preserve that one."""
    stat = path.stat()
    return f"{stat.st_ino}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}"


def remembered(read: Callable) -> Callable:
    """Returns `read(path, ...)`, cached until the file changes. The result is shared: do not modify it."""
    made = cache(lambda stamp, path, *rest: read(path, *rest))
    return lambda path, *rest: made(stamp(path), path, *rest)


def take_lock(file: IO, shared: bool = False) -> bool:
    """Tries to lock an open file for this process until it is closed; returns whether it succeeded.

    shared: only against exclusive locks. Raises StageError if the file system has no such locks.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StageError(f"{file.name} cannot be locked ({error.strerror}), and stages know of each other by locks. "
                         "Set checkpoint_root_dir to a directory of a file system that has them (flock), or have this "
                         "one mounted with them.") from error
    return True


@contextlib.contextmanager
def locked(path: Path, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Holds an exclusive lock on a file for the block. Waits, after passing the holder to `on_wait`.

    The kernel drops the lock when its holder dies, so a killed run leaves nothing to clean up.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():  # opening a pipe may never end
        raise StageError(f"{path} is not a file. Delete it.")
    with open(path, "a+", encoding="utf-8") as file:
        told = False
        while not take_lock(file):
            if not told:
                file.seek(0)
                on_wait(file.read().strip() or "unknown")
                told = True
            time.sleep(0.2)
        file.truncate(0)
        file.write(named_process())
        file.flush()
        yield


def named_process() -> str:
    """Returns how a lock names this process: `process 123 on host`, and the job of SLURM that it belongs to."""
    job = os.environ.get("SLURM_JOB_ID")
    return f"process {os.getpid()} on {platform.node()}" + (f" (job {job})" if job else "")


def near(path: Path) -> str:
    """Returns the path relative to the current directory if below it, else in full."""
    full = Path(os.path.realpath(path))  # a link to itself stays what it is
    return str(full.relative_to(Path.cwd()) if full.is_relative_to(Path.cwd()) else full)
