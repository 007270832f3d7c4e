"""Atomic files, hashes and locks: the rules by which processes meet on a disk.

A file appears complete or not at all: written under a temporary name in the same directory, flushed to the disk,
renamed. A directory is complete when its `manifest.json`, written last, exists; readers ignore what has none.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import IO

from pipeline.store.errors import StageError

MANIFEST = "manifest.json"
HOME = Path(__file__).resolve().parents[2]  # the checkout: our packages, Snakefile, conf/
CONF = HOME / "conf"  # choices of configuration that come with the code
TEMPLATES = HOME / "pipeline" / "templates"


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Calls `write(temporary path)` and renames the result to `path`. Nothing is left behind when it fails."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        _explain_full_disk(error, path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """A block that writes below `path`: a disk that is full or read-only is a StageError."""
    try:
        yield
    except OSError as error:
        _explain_full_disk(error, path)
        if error.errno == errno.EROFS:
            raise StageError(f"{error.filename or path} cannot be written: its disk is read-only. Have it mounted for "
                             "writing, or set checkpoint_root_dir to a directory of another one.") from error
        raise


def _explain_full_disk(error: OSError, path: Path) -> None:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(path.parent).free / 2**20
        raise StageError(
            f"no space left for {path}: {free:.0f} MiB are free on that disk. Nothing half-written was kept. "
            "Free some space (old stages lie in store/) and run the same command again."
        ) from error


def write_json(path: Path, value: object) -> None:
    """Writes JSON atomically, keys sorted, so that equal values are equal files."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> dict:
    """Reads a JSON file; a file that is no JSON is a StageError that names it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:  # no JSON, or no text at all
        raise StageError(f"{path} is not valid JSON ({error}). Delete it and run the same command again.") from error


def in_store(directory: str | Path, root: str | Path) -> bool:
    """Whether a directory is that of a stage below `root`; a user's own model directory is not."""
    return Path(directory).parent == Path(root) / "store"


def is_complete(directory: Path) -> bool:
    """Whether a directory has its manifest."""
    return (Path(directory) / MANIFEST).exists()


@contextlib.contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yields a temporary directory that becomes `path` in one rename, if the block succeeds and wrote a manifest."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        assert is_complete(temporary), f"no manifest written in {temporary}"
        flush_tree(temporary)
        shutil.rmtree(path, ignore_errors=True)  # a half-written leftover without a manifest, or an older life
        os.replace(temporary, path)
    except OSError as error:
        _explain_full_disk(error, path)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def flush_tree(directory: Path) -> None:
    """Brings every file below a directory to the disk: a power cut after the rename must not leave them empty."""
    for path in Path(directory).rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())


def remove_leftovers(directory: Path) -> None:
    """Deletes temporary files and directories that a killed process left anywhere below `directory`."""
    for path in list(Path(directory).rglob(".*.tmp")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def hash_text(text: str) -> str:
    """First 16 hex digits of the sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hash_json(value: object) -> str:
    """First 16 hex digits of the sha256 of a JSON value, independent of key order."""
    return hash_text(json.dumps(value, sort_keys=True, ensure_ascii=False))


def hash_file(path: Path) -> str:
    """First 16 hex digits of the sha256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def stamp(path: Path) -> str:
    """What changes with a file's content: inode, size, times. The change time too: a copy that keeps the modification
    time (cp -p, rsync, tar) cannot keep that one.
    """
    stat = path.stat()
    return f"{stat.st_ino}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}"


def remembered(read: Callable) -> Callable:
    """`read(path, ...)`, called anew only when the file has changed. Its result is shared: not to be altered."""
    made = cache(lambda stamp, path, *rest: read(path, *rest))
    return lambda path, *rest: made(stamp(path), path, *rest)


def take_lock(file: IO) -> bool:
    """Whether nobody else holds an open file; then it is this process's until it is closed.

    Raises StageError where the file system has no such locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StageError(f"{file.name} cannot be locked ({error.strerror}), and stages know of each other by locks. "
                         "Set checkpoint_root_dir to a directory of a file system that has them (flock), or have this "
                         "one mounted with them.") from error
    return True


@contextlib.contextmanager
def locked(path: Path, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Holds an exclusive lock on a file for the block. Waits, after telling `on_wait` who holds it.

    The kernel drops the lock when its holder dies, so a killed run leaves nothing to clean up.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="utf-8") as file:
        told = False
        while not take_lock(file):
            if not told:
                file.seek(0)
                on_wait(file.read().strip() or "unknown")
                told = True
            time.sleep(0.2)
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield


def near(path: Path) -> str:
    """The path from here when it is below, else in full."""
    full = path.resolve()
    return str(full.relative_to(Path.cwd()) if full.is_relative_to(Path.cwd()) else full)
