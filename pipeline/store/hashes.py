"""Sizes and hashes of stored files: recorded when a file is written, compared before it is used.

A stage has a list, `_hashes.jsonl`, and each table of steps one next to its directory, `experience_hashes.jsonl`:
polars reads no directory with files of two kinds. (Older releases wrote `_hashes.jsonl` and `hashes.jsonl` inside.)
A line is [name, bytes, xxh3, crc32 of the line's first three]; a later line of the same name replaces an earlier one,
and nulls mean that the file was deleted. A checkpoint's list is in its
manifest. A complete stage also has a list of its other files (model, report), and its manifest has the hashes of all
its lists.
This detects damage, not tampering. Files of older releases have no hashes, and pass.
"""

import contextlib
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import xxhash

from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.locations import PER_STEP

LIST, OLD_LIST = "_hashes.jsonl", "hashes.jsonl"
FILES = "files"  # key of a manifest: name -> [bytes, xxh3]
CHUNK = 4 << 20
THREADS = 4
WORKING = {files.MANIFEST, "stage.json", "threads.json", "total.json", "watched.json",  # of a stage, read by no other
           "segment.json"}
LOGS = (".log", ".error")
PARTS = ("model", "adapter")  # directories of a stage that other stages read

Entry = tuple[int, str]  # bytes, xxh3


def hash_of(path: Path) -> Entry:
    """Returns the size of a file and its 64-bit xxh3."""
    made, size = xxhash.xxh3_64(), 0
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            size += len(chunk)
            made.update(chunk)
    return size, made.hexdigest()


def hash_tree(directory: Path, known: Mapping[str, Entry]) -> dict[str, Entry]:
    """Maps every file below a directory, by its relative name, to size and hash. known: of files that were hashed when
    they were written."""
    names = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())
    entries = in_threads(lambda name: known.get(name) or hash_of(directory / name), names)
    return dict(zip(names, entries, strict=True))


def in_threads(work: Callable, items: Iterable) -> list:
    """Returns `work` of each item, in order; reading and hashing release the interpreter's lock."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, items))


# --------------------------------------------------------------------------------------------------- lists of files


def lists_of(directory: Path) -> list[Path]:
    """Returns where the list of a directory is, and then where older releases had it."""
    beside = [directory.with_name(directory.name + LIST)] if directory.name in PER_STEP else []
    return [*beside, directory / LIST, directory / OLD_LIST]


def is_list(path: Path) -> bool:
    return path.name.endswith(OLD_LIST)


def listed_as(path: Path) -> tuple[Path, str]:
    """Returns the directory whose list has a file, and its name there: experience had a directory for each step."""
    home = path.parent.parent if path.parent.name.startswith("step=") else path.parent
    return home, str(path.relative_to(home))


def write(path: Path, write_to: Callable[[Path], object]) -> None:
    """Writes a file atomically, as `files.write_atomic`, and adds it to the list of its directory."""
    made: list[Entry] = []

    def write_and_hash(temporary: Path) -> None:
        write_to(temporary)
        made.append(hash_of(temporary))  # from memory: it was just written

    if path.exists():
        forget(path)  # a process killed before it adds the new line must not leave the old one
    files.write_atomic(path, write_and_hash)
    home, name = listed_as(path)
    add(home, {name: made[0]})


def forget(path: Path) -> None:
    """Removes a file from the list of its directory."""
    home, name = listed_as(path)
    if entry_of(path):
        add(home, {name: (None, None)})


def remove(path: Path) -> None:
    """Deletes a file, if it exists, and its line."""
    forget(path)
    path.unlink(missing_ok=True)


def forget_all(directory: Path) -> None:
    """Deletes the list of a directory."""
    for path in lists_of(directory):
        path.unlink(missing_ok=True)


def add(directory: Path, entries: dict[str, tuple]) -> None:
    """Appends lines to a directory's list and flushes it: after a power loss a complete file has its line."""
    lines = "".join(_line([name, *entry]) for name, entry in entries.items())
    path, *older = lists_of(directory)
    if not path.exists() and (found := next(filter(Path.exists, older), None)):
        found.rename(path)
    with files.explained(path), open(path, "ab+") as file:
        if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
            lines = f"\n{lines}"
        file.write(lines.encode())
        file.flush()
        os.fsync(file.fileno())


def _line(entry: list) -> str:
    return json.dumps([*entry, f"{zlib.crc32(json.dumps(entry).encode()):08x}"]) + "\n"


def recorded(directory: Path) -> dict[str, Entry]:
    """Returns the files in a directory's list; empty without one. A line cut short by a power loss does not count."""
    return dict(_entries(directory))


def entry_of(path: Path) -> Entry | None:
    """Returns what was recorded of a file."""
    home, name = listed_as(path)
    return _entries(home).get(name)


class _Read(NamedTuple):
    """What this process has read of a list. end: bytes. last: the line that ends there."""

    inode: int
    end: int
    last: bytes
    entries: dict[str, Entry]


_READ: dict[Path, _Read] = {}
_READING = threading.Lock()


def _entries(directory: Path) -> dict[str, Entry]:
    """Returns the entries of a list. Only what was appended since the last call is read: a long stage has many."""
    lists = lists_of(Path(os.path.abspath(directory)))
    with _READING:
        path = next(filter(Path.exists, lists), None)
        if path is None:
            for gone in lists:
                _READ.pop(gone, None)
            return {}
        with open(path, "rb") as file:
            inode, known = os.fstat(file.fileno()).st_ino, _READ.get(path, _Read(-1, 0, b"", {}))
            file.seek(known.end - len(known.last))
            text = file.read()
            if known.inode != inode or not text.startswith(known.last):  # another list
                known = _Read(inode, 0, b"", {})
                file.seek(0)
                text = file.read()
        new = text[len(known.last) : text.rfind(b"\n") + 1]
        for line in new.splitlines():
            _apply(line, known.entries)
        last = new.splitlines(keepends=True)[-1] if new else known.last
        _READ[path] = _Read(inode, known.end + len(new), last, known.entries)
        return known.entries


def _apply(line: bytes, entries: dict[str, Entry]) -> None:
    """Reads a line; one that is cut short or damaged does not count: its file is then used unchecked."""
    with contextlib.suppress(ValueError):
        name, size, digest, *check = json.loads(line)
        if check and _line([name, size, digest]).encode() != line + b"\n":
            return
        if size is None:
            entries.pop(name, None)
        else:
            entries[name] = (size, digest)


# ------------------------------------------------------------------------------------------------------- comparison


def difference(path: Path, entry: Entry | None, verify: str = "hash") -> str | None:
    """Returns how a file differs from what was written, or None. entry: None when nothing was recorded.

    verify: `size` compares sizes only.
    """
    if entry is None:
        return None
    size, digest = entry  # a list when read from a manifest
    if not path.exists():
        return f"it is missing; {size:,} bytes were written"
    if (found := path.stat().st_size) != size:
        return f"it has {found:,} bytes; {size:,} were written"
    if verify == "hash" and (found := hash_of(path)[1]) != digest:
        return f"its xxh3 is {found}; written was {digest} ({size:,} bytes)"
    return None


def differences(directory: Path, entries: dict[str, Entry], verify: str = "hash") -> dict[str, str]:
    """Maps the damaged or missing of these files below a directory, by name, to how they differ."""
    check = partial(difference, verify=verify)
    found = in_threads(lambda name: check(directory / name, entries[name]), entries)
    return {name: words for name, words in zip(entries, found, strict=True) if words}


def require(paths: Iterable[Path]) -> None:
    """Raises DataError for a file that is not what was written."""
    lists: dict[Path, dict[str, Entry]] = {}  # each opened once, for thousands of files
    for path in paths:
        home, name = listed_as(path)
        if home not in lists:
            lists[home] = _entries(home)
        if words := difference(path, lists[home].get(name)):
            raise damaged(path, words)


def damaged(path: Path, words: str) -> DataError:
    """Returns the error of a damaged file. A stage that is not complete repairs its own when it resumes."""
    stage = stage_of(path)
    again = "Run the same command again: the stage makes it again, or says why it cannot."
    return DataError(f"{path} is damaged: {words}. {again if stage and not files.is_complete(stage) else advice(path)}")


def stage_of(path: Path) -> Path | None:
    return next((p for p in path.parents if p.parent.name == "store"), None)


def advice(path: Path) -> str:
    """Returns what makes a file of a stage again."""
    if (stage := stage_of(path)) is None:
        return "Make the file again, or point the configuration at another one."
    return (f"Delete {stage} and run the same command again: that stage is then made again. Or put a copy of the file "
            "back.")


# ----------------------------------------------------------------------------------------------- stages as a whole


def seal(stage: Path) -> dict[str, Entry]:
    """Lists the files of a finished stage that no list has yet; returns the entries of all its lists.

    A model is a link to that of the last checkpoint, whose manifest has its hashes.
    """
    known = recorded(stage)
    direct = [path for path in stage.iterdir() if path.is_file() and not path.name.startswith(".")
              and path.name not in WORKING and not is_list(path) and path.suffix not in LOGS]
    inside = [path for part in PARTS for path in (stage / part).rglob("*") if path.is_file()]
    names = sorted(str(path.relative_to(stage)) for path in (*direct, *inside))
    linked = _linked(stage)
    if new := [name for name in names if name not in known]:
        entries = in_threads(lambda name: linked.get(name) or hash_of(stage / name), new)
        add(stage, dict(zip(new, entries, strict=True)))
    lists = [path for place in homes(stage) for path in lists_of(place) if path.exists()]
    return {str(path.relative_to(stage)): hash_of(path) for path in lists}


def homes(stage: Path) -> list[Path]:
    """Returns the directories of a stage that may have lists, also those of tables that were deleted."""
    return [stage, *sorted({*stage.glob("*/"), *(stage / table for table in PER_STEP)})]


def _linked(stage: Path) -> dict[str, Entry]:
    """Returns the entries of files that are links to those of the newest checkpoint."""
    newest = max((stage / "checkpoints").glob(f"step=*/{files.MANIFEST}"), default=None)
    entries = files.read_json(newest).get(FILES, {}) if newest else {}
    return {name: tuple(entry) for name, entry in entries.items() if (stage / name).exists()
            and (newest.parent / name).exists() and (stage / name).samefile(newest.parent / name)}


def contents(stage: Path, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Entry] | None:
    """Maps the files of a complete stage to what was written; None for one of a release without hashes.

    wanted: chooses directories with a list by name, such as `steps`; that of the stage itself is empty.
    """
    lists = files.read_json(stage / files.MANIFEST).get(FILES)
    if lists is None:
        return None
    found: dict[str, Entry] = {}
    for name, entry in lists.items():
        home = "" if name == OLD_LIST else name.partition("/")[0].removesuffix(LIST)
        if wanted(home):
            found[name] = entry
            found |= {str(Path(home, file)): listed for file, listed in recorded(stage / home).items()}
    return found
