"""Answers that take long to compute, kept next to Python's compiled modules for the next process.

They are trusted like these: while the sources of which they are made have the same sizes and times of change, and no
package was installed or removed.
"""

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterable
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import StageError


@cache
def version(*sources: str) -> str:
    """Returns a hash of the names, sizes and times of sources, and of when a package was last installed or removed."""
    return files.hash_text(str((sys.version, stamps([*sources, sysconfig.get_path("purelib")]))))


def stamps(paths: Iterable[str | Path]) -> list[tuple[str, int, int]]:
    """Returns name, size and time of change (nanoseconds since 1970) of each path."""
    return [(str(path), stat.st_size, stat.st_mtime_ns) for path in paths for stat in [os.stat(path)]]


def answers(module: str, made_of: str) -> dict[str, Any]:
    """Returns what was kept for a module, by keys; nothing where it was made of something else.

    module: its `__file__`. made_of: as of `version`."""
    with contextlib.suppress(OSError, StageError):
        kept = files.read_json(_place(module))
        if kept.get("version") == made_of:
            return kept["answers"]
    return {}


def keep(module: str, made_of: str, found: dict[str, Any]) -> None:
    """Keeps all answers of a module in place of earlier ones; nothing where Python keeps no compiled modules."""
    place = _place(module)
    temporary = place.with_suffix(f".{os.getpid()}.tmp")
    with contextlib.suppress(OSError):  # a directory that cannot be written to: computed again by the next process
        if not sys.dont_write_bytecode:
            temporary.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(files.json_text({"version": made_of, "answers": found}), encoding="utf-8")
            temporary.replace(place)


def _place(module: str) -> Path:
    return Path(cache_from_source(module)).with_suffix(".json")
