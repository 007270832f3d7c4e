"""The flight recorder: what attempts asked the model and their tools, kept until their step's rows are complete.

After a kill the attempts of the unfinished step start again, and what was recorded answers them: the model is not asked
again for a recorded reply, and no tool whose result is recorded runs again. The intent of a tool call is on the disk
before the tool runs, its result before the attempt sees it, and replies no later than the next intent.

A journal is a file of lines, each a CRC-32 and JSON. The first one names stage, step and weights: with other weights
the attempts are others, and the journal is begun again. A line names newer weights that were loaded during the step.
"""

import base64
import json
import os
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import StageError
from ouroboros.workflows.protocol.engine import Reply, Request
from ouroboros.workflows.protocol.kept import Kept
from ouroboros.workflows.protocol.outcomes import ToolUse

LATER = ("follows", "schema", "stop", "min_p", "keeps", "pictures")  # of a Request, recorded where they matter
NARROW, WIDE = "<u2", "<u4"  # types of experts, and of token ids
HEAD, WEIGHTS, REPLY, INTENT, RESULT = "head", "weights", "reply", "intent", "result"  # kinds of lines
STEP, EVALUATION = "step", "evaluation"  # what journals of a stage are of


class Replayed(Exception):
    """An attempt cannot go on from what was recorded of it."""


@dataclass(slots=True)
class Event:
    """A call of an attempt. content: a digest of it; answer: what was recorded; None for a call that has none.

    place: calls begun before it. alone: whether all of them had been answered, and none began before its own answer.
    """

    key: str
    content: str
    place: int
    alone: bool
    answer: Any = None


class Journal:
    """The recorder of a step. Without a path it keeps nothing, and every attempt is new."""

    def __init__(self, path: Path | None = None, head: dict[str, Any] | None = None,
                 warn: Callable[[str], None] = lambda line: None):
        """head: what the attempts depend on besides their names; a journal with another one is not used."""
        self._path, self._head = path, head or {"run": uuid.uuid4().hex}
        self._buffer, self._waiting, self._file, self._warn = [], [], None, warn
        self._earlier: dict[str | None, list[dict]] = {}
        if path and path.exists():
            self._resume(path)

    def _resume(self, path: Path) -> None:
        lines, end = _read(path)
        if not lines:
            return path.unlink()
        if lines[0] != self._line(HEAD, None, self._head):
            return self.forget()
        for line in lines[1:]:
            self._earlier.setdefault(line["attempt"], []).append(line)
        self._file = open(path, "r+b", buffering=0)  # noqa: SIM115 (closed by `close`)
        self._file.truncate(end)  # a line that a kill cut short
        self._file.seek(end)
        return os.fsync(self._file.fileno())

    @property
    def newer(self) -> tuple[int, str] | None:
        """Version and hash of the weights that were loaded during the step before a kill, if any were."""
        lines = self._earlier.get(None)
        return (lines[-1]["version"], lines[-1]["hash"]) if lines else None

    def loaded(self, version: int, hash_: str) -> None:
        """Records that replies from now on are of these weights."""
        self.append(WEIGHTS, None, {"version": version, "hash": hash_})

    def forget(self) -> None:
        """Begins again, because what is recorded is of other weights."""
        self._warn(f"{self._path} was recorded with other weights: the attempts of this step are made again, and their "
                   "tools run again")
        self.remove()
        self._earlier = {}

    def recording(self, attempt: str) -> "Recording":
        """What is recorded of an attempt. attempt: its name, unique in the step."""
        return Recording(self, attempt, self._earlier.get(attempt, ()))

    def key(self, *parts: Any) -> str:
        """An idempotency key: the same after a kill, another for every call of every attempt."""
        return files.hash_json([self._head, *parts])

    def append(self, kind: str, attempt: str | None, content: dict, then: Callable[[], None] | None = None) -> None:
        """Adds a line. then: called when it is on the disk, with all before it."""
        if self._path:
            self._buffer.append(self._line(kind, attempt, content))
        if then:
            self._waiting.append(then)

    def commit(self) -> None:
        """Writes the new lines, and flushes them if somebody waits for that."""
        lines, self._buffer = self._buffer, []
        waiting, self._waiting = self._waiting, []
        if lines:
            with files.explained(self._path):
                self._write(lines, bool(waiting))
        for then in waiting:
            then()

    def _write(self, lines: list[dict], flushes: bool) -> None:
        if is_new := self._file is None:
            self._file = open(self._path, "wb", buffering=0)  # noqa: SIM115
            lines = [self._line(HEAD, None, self._head), *lines]
        content = memoryview(b"".join(map(_encoded, lines)))
        while content:
            content = content[self._file.write(content):]
        if flushes:
            os.fsync(self._file.fileno())
        if is_new and flushes:
            files.flush_to_disk(self._path.parent)

    def close(self) -> None:
        if self._file:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """Deletes the file: the rows of its step are complete."""
        self.close()
        if self._path:
            self._path.unlink(missing_ok=True)

    @staticmethod
    def _line(kind: str, attempt: str | None, content: dict) -> dict:
        return {"kind": kind, "attempt": attempt, **content}


class Recording:
    """What one attempt asked before a kill, and what it asks now."""

    def __init__(self, journal: Journal, attempt: str, lines: Any):
        self._journal, self._attempt = journal, attempt
        self._earlier, self._same = _events(lines), Counter()
        self._begun = self._answered = 0
        self._tools: dict[str, tuple[Event, str, str]] = {}  # calls of tools by key, with names and arguments
        self.tool_calls: list[ToolUse] = []
        self._in_sequence = all(event.alone for event in self._earlier.values())

    def reply(self, request: Request) -> tuple[Event, tuple[Reply, float] | None]:
        """Begins a call of the model; returns it with the recorded reply and its seconds, if there is one.

        Raises Replayed for a request that differs from the recorded one.
        """
        wanted = [getattr(request, name) for name in Request.__slots__ if name not in LATER]
        wanted += [] if request.schema is None else [request.schema]
        wanted += [] if request.stop is None else [astuple(request.stop)]
        wanted += [request.min_p, "keeps"] if request.keeps else []
        wanted += [[one.hash for one in request.pictures]] if request.pictures else []
        event = self._begin(f"{REPLY} {request.seed}", files.hash_json(wanted), "request of the model")
        if event.answer is None:
            return event, None
        self._answered += 1
        tokens, logprobs, reason, seconds, *more = event.answer
        versions, experts, kept = [*more, None, None, None][:3]
        kept = kept and Kept(*(_array(*part, WIDE).astype(np.int32) for part in kept))
        return event, (Reply(tokens, logprobs, reason, versions, experts and _array(*experts, NARROW), kept), seconds)

    def replied(self, event: Event, reply: Reply, seconds: float) -> None:
        """Records the reply to a call."""
        alone = self._stays_alone(event.place, event.alone)
        self._answered += 1
        more = [reply.versions, None if reply.experts is None else _text(reply.experts, NARROW),
                reply.kept and [_text(part, WIDE) for part in (reply.kept.ids, reply.kept.counts)]]
        while more and more[-1] is None:
            more.pop()
        answer = (reply.tokens, reply.logprobs, reply.finish_reason, seconds, *more)
        self._journal.append(REPLY, self._attempt, {**asdict(event), "alone": alone, "answer": answer})

    def intend(self, name: str, arguments: str, idempotent: bool, then: Callable[[tuple], None]) -> None:
        """Begins a tool call. then: gets its idempotency key, and the recorded result or None when it may run.

        Raises Replayed where nobody knows whether the call took effect before the kill.
        """
        content = files.hash_json([name, arguments])
        self._same[content] += 1
        key = self._journal.key(self._attempt, content, self._same[content])
        known = f"{INTENT} {key}" in self._earlier
        event = self._begin(f"{INTENT} {key}", content, f"call of the tool {name}")
        self._tools[key] = event, name, arguments
        if event.answer is not None:
            self._keep(key, event.answer)
            then((key, event.answer))
        elif not known:
            line = {**asdict(event), "tool": name, "arguments": arguments}
            self._journal.append(INTENT, self._attempt, line, lambda: then((key, None)))
        elif idempotent:
            then((key, None))
        else:
            raise Replayed(f"outcome unknown: the tool {name} was called, no result was recorded before the explorer "
                           "was killed, and it is not declared idempotent")

    def result(self, key: str, answer: tuple, then: Callable[[None], None]) -> None:
        """Records the result of a tool call. then: called when it is on the disk."""
        event, *_ = self._tools[key]
        line = {"key": event.key, "alone": self._stays_alone(event.place, event.alone), "answer": answer}
        self._keep(key, answer)
        self._journal.append(RESULT, self._attempt, line, lambda: then(None))

    def _keep(self, key: str, answer: Sequence) -> None:
        self._answered += 1
        self.tool_calls.append(ToolUse(*self._tools[key][1:], key, *answer))

    def _stays_alone(self, place: int, alone: bool) -> bool:
        return alone and self._begun == place + 1

    def unused(self) -> str | None:
        """Why an attempt that ends does not continue what was recorded of it, or None."""
        if not self._earlier:
            return None
        return (f"replayed after a kill, the attempt made other calls: {len(self._earlier)} that were recorded were "
                "not made again; needed code that does the same whenever replies and tools are the same")

    def _begin(self, key: str, content: str, what: str) -> Event:
        place, alone = self._begun, self._begun == self._answered
        self._begun += 1
        event = self._earlier.pop(key, None)
        if (event and event.content != content) or (not event and self._earlier and self._in_sequence):
            raise Replayed(f"replayed after a kill, the attempt made another {what} than the recorded call {place}; "
                           "needed code that does the same whenever replies and tools are the same")
        return event or Event(key, content, place, alone)


def _events(lines: Any) -> dict[str, Event]:
    """The recorded calls of an attempt, by key."""
    events: dict[str, Event] = {}
    for line in lines:
        if line["kind"] == RESULT:
            events[line["key"]].answer, events[line["key"]].alone = line["answer"], line["alone"]
        else:
            events[line["key"]] = Event(*(line[name] for name in ("key", "content", "place", "alone", "answer")))
    return events


def _text(numbers: np.ndarray, kind: str) -> tuple[list[int], str]:
    """Whole numbers of a reply, of a type of numpy, as JSON holds them."""
    return list(numbers.shape), base64.b64encode(numbers.astype(kind).tobytes()).decode("ascii")


def _array(shape: list[int], text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind).reshape(shape)


def journal_file(stage: Path, kind: str, number: int) -> Path:
    return stage / f"{kind}={number}.journal"


def forget_before(stage: Path, step: int) -> None:
    """Deletes journals of complete steps, which a kill left."""
    for path in stage.glob(f"{STEP}=*.journal"):
        if int(path.stem.removeprefix(f"{STEP}=")) < step:
            path.unlink(missing_ok=True)


def _encoded(line: dict) -> bytes:
    text = json.dumps(line).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _decoded(line: bytes) -> dict | None:
    """The content of a line; None if it is damaged."""
    checksum, _, text = line.partition(b" ")
    return json.loads(text) if checksum == b"%08x" % zlib.crc32(text) else None


def _read(path: Path) -> tuple[list[dict], int]:
    """The lines of a journal and where they end; a damaged last one does not count. Raises StageError for others."""
    *complete, _ = path.read_bytes().split(b"\n")
    lines = [_decoded(line) for line in complete]
    damaged = lines.index(None) if None in lines else len(lines)
    if damaged < len(lines) - 1:
        raise StageError(f"{path} is damaged in line {damaged + 1}: which tools took effect is unknown. Delete it to "
                         "make all attempts of its step again, with their tools.")
    return lines[:damaged], sum(len(line) + 1 for line in complete[:damaged])
