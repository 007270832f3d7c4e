"""Files of tensors in the safetensors format, written, read and hashed in threads, without torch.

The library writes a file with one thread and hashes nothing; weights are published after every optimizer step, so here
both happen at once. It reads what is written here, and its header describes what is read.
"""

import errno
import fcntl
import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from mmap import mmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from ouroboros.pipeline.store.errors import ModelError

CHUNK = 16 << 20  # bytes that a thread writes or reads at once
THREADS = 8
BUFFERS = 9  # of a chunk each, of a file that is written from front to back: one is filled, others are written
TYPES = {  # of safetensors, in its order -> of torch, and bytes of an element
    "BOOL": ("bool", 1), "U8": ("uint8", 1), "I8": ("int8", 1), "F8_E5M2": ("float8_e5m2", 1),
    "F8_E4M3": ("float8_e4m3fn", 1), "I16": ("int16", 2), "U16": ("uint16", 2), "F16": ("float16", 2),
    "BF16": ("bfloat16", 2), "I32": ("int32", 4), "U32": ("uint32", 4), "F32": ("float32", 4),
    "C64": ("complex64", 8), "F64": ("float64", 8), "I64": ("int64", 8), "U64": ("uint64", 8)}
Allocate = Callable[[int], np.ndarray]


class Stored(NamedTuple):
    """A tensor as its bytes. dtype: of the safetensors format. data: contiguous uint8 [bytes]."""

    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray

    @property
    def words(self) -> np.ndarray:
        """Its elements, as unsigned integers: two are equal if their bits are."""
        return self.data.view(f"u{TYPES[self.dtype][1]}")


def in_threads(work: Callable, items: Iterable) -> list:
    """Returns `work` of each item, in order, on the cores of this process. numpy, xxhash and files release the lock."""
    with ThreadPoolExecutor(min(THREADS, len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(work, items))


def distinct(tensors: Mapping[str, Stored]) -> dict[str, str]:
    """Maps each name to the first one with the same memory: tied tensors are read once. Largest first, so that no
    thread is left with one in the end."""
    first: dict[tuple[int, int], str] = {}
    places = {name: (tensor.data.ctypes.data, tensor.data.nbytes) for name, tensor in tensors.items()}
    return {name: first.setdefault(places[name], name) for name in sorted(places, key=lambda name: -places[name][1])}


def hashes_of(tensors: Mapping[str, Stored]) -> dict[str, str]:
    """Returns the 128-bit xxh3 of each tensor's bytes."""
    first = distinct(tensors)
    once = list(dict.fromkeys(first.values()))
    found = dict(zip(once, in_threads(lambda name: xxhash.xxh3_128(tensors[name].data).hexdigest(), once), strict=True))
    return {name: found[first[name]] for name in tensors}


def write(path: Path, tensors: Mapping[str, Stored]) -> None:
    """Writes a file; it is not flushed to the disk."""
    pieces = [(begin + at, data[at : at + CHUNK]) for begin, data in _laid_out(tensors)
              for at in range(0, data.nbytes, CHUNK)]
    with open(path, "wb", buffering=0) as file:
        in_threads(lambda piece: _write_at(file.fileno(), *piece), pieces)


def write_hashed(path: Path, tensors: Mapping[str, Stored]) -> tuple[int, str, str]:
    """Writes a file; returns its bytes, their 64-bit xxh3 and the first 16 digits of their sha256."""
    with Writer(path, sha256 := hashlib.sha256(), cached=True) as file:
        for _, data in _laid_out(tensors):
            file.write(data)
    return *file.entry, sha256.hexdigest()[:16]


def _laid_out(tensors: Mapping[str, Stored]) -> list[tuple[int, np.ndarray]]:
    """Returns the head of a file and its tensors in the library's order, which aligns all: the last of TYPES first, of
    one type by name. Each with where it begins."""
    header, parts, begin, order = {"__metadata__": {"format": "pt"}}, [], 0, [*TYPES]
    for name, one in sorted(tensors.items(), key=lambda one: (-order.index(one[1].dtype), one[0])):
        parts.append((begin, one.data))
        begin += one.data.nbytes
        header[name] = {"dtype": one.dtype, "shape": list(one.shape), "data_offsets": [parts[-1][0], begin]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    head = np.frombuffer(len(text).to_bytes(8, "little") + text, np.uint8)
    return [(0, head), *((len(head) + begin, data) for begin, data in parts)]


class Writer(AbstractContextManager):
    """A new file, written from front to back, as torch.save does, and hashed meanwhile. The disk begins at once; to
    flush it is left to the caller. The first error is kept until the block ends: torch cannot leave a file that it
    could not write. entry: at the end, bytes and their 64-bit xxh3."""

    def __init__(self, path: Path, *others: Any, cached: bool = False):
        """others: hashlib objects to update besides. cached: whether the page cache keeps it, for a reader; else it
        goes past that where the file system can: to find new pages takes a virtual machine longer than a disk does."""
        self._buffers = deque(np.frombuffer(mmap(-1, CHUNK), np.uint8) for _ in range(BUFFERS))  # whole pages
        path.unlink(missing_ok=True)  # one that is read by mmap keeps its content
        self._file, self._cached = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), cached
        if not cached:
            with suppress(OSError):
                fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_DIRECT)
        self._hashes, self._size, self._error = (xxhash.xxh3_64(), *others), 0, None
        self._pool, self._calls = ThreadPoolExecutor(BUFFERS - 1), deque()

    def write(self, data: memoryview | bytes | np.ndarray) -> int:
        """Writes all of it, as torch expects; after an error nothing."""
        done = 0
        try:
            while done < len(data) and not self._error:
                at = self._size % CHUNK
                part = np.frombuffer(data, np.uint8, min(CHUNK - at, len(data) - done), done)
                self._buffers[0][at : at + part.nbytes] = part
                for one in self._hashes:
                    one.update(part)
                self._size, done = self._size + part.nbytes, done + part.nbytes
                if self._size % CHUNK == 0:
                    self._put(CHUNK)
        except Exception as error:  # any: the end of the block raises it
            self._error = error
        return len(data)

    def _put(self, length: int) -> None:
        """Begins to write the buffer that is filled, and waits for the one that is filled next."""
        self._calls.append(self._pool.submit(self._write, self._size - length, self._buffers[0][:length]))
        self._buffers.rotate(-1)
        if len(self._calls) == BUFFERS:
            self._calls.popleft().result()

    def _write(self, offset: int, data: np.ndarray) -> None:
        _write_at(self._file, offset, data)
        if not self._cached:
            with suppress(OSError):  # advice, which not every file system takes: drops what is on the disk
                os.posix_fadvise(self._file, offset, len(data), os.POSIX_FADV_DONTNEED)

    def flush(self) -> None:
        """Nothing is held back that the end of the block does not write."""

    def __exit__(self, *raised: object) -> None:
        with os.fdopen(self._file, "wb", buffering=0), self._pool:
            if self._error:
                raise self._error
            if not any(raised):
                self._put(self._size % CHUNK)
                _ = [call.result() for call in self._calls]
        self.entry = self._size, self._hashes[0].hexdigest()


def _write_at(file: int, offset: int, data: np.ndarray) -> None:
    while data.nbytes:
        direct = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT
        try:
            if not (done := os.pwrite(file, data, offset)):
                raise OSError(errno.EIO, "nothing was written")
        except OSError as error:  # whole blocks alone go past the page cache, and on some file systems none
            if not direct or error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            done = 0
            fcntl.fcntl(file, fcntl.F_SETFL, 0)
        offset, data = offset + done, data[done:]


def read(path: Path, allocate: Allocate | None = None) -> dict[str, Stored]:
    """Returns the tensors of a file. allocate: of the memory to read them into; None: the file is mapped, and changes
    of the tensors stay private. Raises ModelError for an incomplete file."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            begin, size = 8 + length, os.fstat(file.fileno()).st_size
            header = json.loads(file.read(length)) if begin <= size else {}
        header.pop("__metadata__", None)
        ends = [one["data_offsets"][1] for one in header.values()]
    except FileNotFoundError as error:
        raise ModelError(f"{path} is missing.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path} is not a safetensors file ({type(error).__name__}: {error}).") from error
    if begin + max(ends, default=0) != size:  # no tensors: of a step that changed no weight
        raise ModelError(f"{path} is cut short: it has {size:,} bytes.")
    whole = np.memmap(path, np.uint8, "c") if allocate is None else _read_into(allocate(size), path)
    return {name: Stored(one["dtype"], tuple(one["shape"]), whole[begin + one["data_offsets"][0] :
                                                                begin + one["data_offsets"][1]].view(np.ndarray))
            for name, one in header.items()}


def _read_into(memory: np.ndarray, path: Path) -> np.ndarray:
    with open(path, "rb", buffering=0) as file:
        def fill(part: np.ndarray, at: int) -> None:
            while part.nbytes:
                if not (done := os.preadv(file.fileno(), [part], at)):
                    raise ModelError(f"{path} became shorter while it was read.")
                part, at = part[done:], at + done

        in_threads(lambda at: fill(memory[at : at + CHUNK], at), range(0, memory.nbytes, CHUNK))
    return memory
