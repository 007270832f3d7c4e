"""`ouro logs`: the logs of a run's stages as one, ordered by time."""

import heapq
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from ouroboros.pipeline.job.error_file import told
from ouroboros.pipeline.results.view import Node
from ouroboros.pipeline.store.errors import DataError, nearest

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
HEAD = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) (" + "|".join(LEVELS) + r") ")
POLL_SECONDS = 0.3
MOST_LINES = 40  # of one record: a traceback, not all that a library prints


class Record(NamedTuple):
    """A record of a log. time: as it is written, which sorts. text: all of its lines."""

    time: str
    source: str
    level: str
    text: str

    def __str__(self) -> str:
        return f"{self.time} {self.source}: {self.text}"


def choose(stages: list[Node], name: str | None) -> list[Node]:
    """The stages of that name, all without one. Raises DataError."""
    found = [stage for stage in stages if name in (None, stage.name, stage.directory.name)]
    if not found:
        names = [stage.name for stage in stages]
        raise DataError(f"no stage '{name}'.{nearest(name, names)} Known: {', '.join(names)}.")
    return list({stage.directory: stage for stage in found}.values())


def show(stages: list[Node], level: str, tail: int | None, follow: bool, out: Callable[[str], object] = print) -> None:
    """Prints the records of at least a level. tail: the last ones, at most this number.

    follow: new ones too, until interrupted.
    """
    wanted = LEVELS[LEVELS.index(level):]
    logs: dict[Path, _Log] = {}
    records = (one for one in _new(stages, logs, all_of_it=not follow) if one.level in wanted)
    for record in deque(records, tail) if tail is not None else records:
        out(str(record))
    while follow:
        time.sleep(POLL_SECONDS)
        for record in _new(stages, logs):
            if record.level in wanted:
                out(str(record))


def _new(stages: list[Node], logs: dict[Path, "_Log"], all_of_it: bool = False) -> Iterator[Record]:
    """The records that were appended since the last call, by time. all_of_it: with a last line that is not complete."""
    for stage in stages:
        for path in sorted(stage.directory.glob("*.log")):
            if path not in logs and path.is_file():
                logs[path] = _Log(path, stage.name if path.stem == "stage" else f"{stage.name}/{path.stem}")
    return heapq.merge(*(log.new(all_of_it) for log in logs.values()), key=lambda record: record.time)


class _Log:
    """One log file. What a library prints has no time: it belongs to the record before it."""

    def __init__(self, path: Path, source: str):
        self.path, self.source, self.at, self.time = path, source, 0, ""

    def new(self, all_of_it: bool) -> Iterator[Record]:
        with open(self.path, "rb") as file:
            file.seek(self.at)
            content = file.read()
        content = content if all_of_it else content[: content.rfind(b"\n") + 1]
        self.at += len(content)
        return self._records(told(content.decode(errors="replace").splitlines()))

    def _records(self, lines: list[str]) -> Iterator[Record]:
        heads = [head[1] for line in lines if (head := HEAD.match(line))]
        self.time = self.time or (heads[0] if heads else _changed(self.path))
        level, kept = "INFO", []
        for line in lines:
            if head := HEAD.match(line):
                yield from self._record(level, kept)
                self.time, level, kept = head[1], head[2], [line[len(head[1]) + 1 :]]
            else:
                kept.append(line)
        yield from self._record(level, kept)

    def _record(self, level: str, lines: list[str]) -> Iterator[Record]:
        if lines:
            more = [f"... {len(lines) - MOST_LINES} more lines: {self.path}"] if len(lines) > MOST_LINES else []
            yield Record(self.time, self.source, level, "\n".join(lines[:MOST_LINES] + more))


def _changed(path: Path) -> str:
    moment = datetime.fromtimestamp(path.stat().st_mtime)
    return f"{moment:%Y-%m-%d %H:%M:%S},{moment.microsecond // 1000:03d}"
