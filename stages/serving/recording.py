"""Records what a running application asked and what it said of the answers, as the experience of a stage.

    experience/step=*/, calls/, feedback/, rollouts/    like the tables of a stage with mode=explore: `attempts` of a
                                                        step have a reward and are trained on, further ones have none
    next to it, DIR.journal/000001.json                  replies and feedback of attempts that are in no step yet

Every SECONDS a part of the journal is written, and before feedback is acknowledged; a step as soon as enough attempts
are rewarded. Every file is written under a temporary name, flushed and renamed, a step's `rollouts` last. A killed
server loses replies that came after the last part; the next one goes on with the attempts of the journal. A part is
deleted when all of its attempts are in steps.
"""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ouroboros.pipeline.store import files, records, tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.stages.serving import attempts
from ouroboros.stages.serving.attempts import Attempt, Feedback, Reply, Source
from ouroboros.workflows.endpoint.dialect import Refusal

LOCK = "lock"
SECONDS = 5.0  # between parts of the journal: a killed server loses the replies of this time at most
PART_BYTES = 1 << 18  # of a part, which is written again with each new event until it is this large
ADVICE = ("Put a copy of it back, or delete it and start the server again: attempts that have replies or feedback in "
          "it are then left out.")
RECORDED = Refusal(409, "the feedback came too late, or twice: the attempt is recorded", "already_recorded")


class Recording:
    """A directory of recorded experience, used by one server at a time."""

    def __init__(self, directory: Path, source: Source, decode: Callable[[list[int], bool], str], per_step: int,
                 wait: float, keep: bool):
        """per_step: rewarded attempts of a step. wait: seconds for feedback after the last reply of an attempt, after
        which its rows are kept without a reward (`keep`) or left out.
        """
        self.directory, self._source, self._decode = directory, source, decode
        self._per_step, self._wait, self._keep = per_step, wait, keep
        self.open: dict[str, Attempt] = {}  # in no step yet, in order of their first replies
        self._ready: dict[str, Attempt] = {}  # those with a reward, in the order of their feedback
        self._events: list[dict] = []  # of the part that is not finished
        self._kept = 0  # of them, in its file
        self._unkept: list[tuple[dict, list[tuple[Attempt, list[Reply]]]]] = []  # feedback, and its attempts before it
        self.torn: set[str] = set()  # attempts of the journal that lack replies, and are left out
        self._parts: dict[Path, set[str]] = {}  # the journal: file -> its attempts
        self._journal = journal_of(directory)
        self._journal.mkdir(parents=True, exist_ok=True)
        self._lock = open(self._journal / LOCK, "a+", encoding="utf-8")  # noqa: SIM115  held until the server ends
        if not files.take_lock(self._lock):
            raise DataError(f"another server records to {directory}. Name another directory.")
        for place in (directory, self._journal):
            files.remove_leftovers(place)
        done = tables.steps_present(directory, "rollouts")
        self.step = max(done, default=0) + 1
        self._restore(done)

    def replied(self, attempt: Attempt, reply: Reply) -> None:
        """Adds a reply to an attempt, new or known; one that comes after the feedback is in no row."""
        if attempt.components is not None:
            return
        self._events.append({"attempt": attempt.id, "session": attempt.session, "reply": vars(reply),
                             "place": len(attempt.replies)})
        attempt.replies.append(reply)
        attempt.touched = reply.unix
        self.open[attempt.id] = attempt

    def rewarded(self, feedback: Feedback) -> Attempt:
        """Ends an attempt with its reward; several responses become one attempt. Raises Refusal for unknown ones."""
        found = self._named(feedback)
        self._events.append({"feedback": vars(feedback), "attempts": [one.id for one in found]})
        self._unkept.append((self._events[-1], [(one, [*one.replies]) for one in found]))
        return self._end(found, feedback)

    def _named(self, feedback: Feedback) -> list[Attempt]:
        ids = list(dict.fromkeys(one.partition("-")[0] for one in feedback.ids))
        if feedback.session is not None:
            ids = [one.id for one in self.open.values() if one.session == feedback.session and one.components is None]
        if not ids:
            raise Refusal(404, f"session {feedback.session!r} has no reply that waits for feedback", "not_found")
        if any(one in self.open and self.open[one].components is not None for one in ids):
            raise RECORDED
        if unknown := [one for one in ids if one not in self.open]:
            raise Refusal(404, f"no response {unknown[0][:80]!r} waits for feedback", "not_found")
        return [self.open[one] for one in ids]

    def _end(self, found: list[Attempt], feedback: Feedback) -> Attempt:
        first, *others = found
        for other in others:
            first.replies += other.replies
            del self.open[other.id]
        first.components, first.group, first.metadata = feedback.components, feedback.group, feedback.metadata
        self._ready[first.id] = first
        return first

    def keep(self) -> None:
        """Writes the journal: when it returns, all that was recorded is on the disk.

        Raises StageError or OSError, and then knows nothing of feedback that is not.
        """
        if self._kept == len(self._events):
            return
        path = self._journal / f"{self._number():06d}.json"
        try:
            files.write_json(path, {"step": self.step, "events": self._events})
        except BaseException:
            self._take_back()
            raise
        self._kept = len(self._events)
        self._unkept.clear()
        if path.stat().st_size > PART_BYTES:
            self._finish(path)

    def _take_back(self) -> None:
        while self._unkept:
            event, before = self._unkept.pop()
            self._events.remove(event)
            del self._ready[before[0][0].id]
            for one, replies in before:
                one.replies, one.components, one.group, one.metadata = replies, None, None, None
                self.open[one.id] = one

    def _finish(self, path: Path) -> None:
        self._parts[path], self._events, self._kept = _attempts(self._events), [], 0

    def flush(self, last: bool = False) -> None:
        """Writes a part of the journal, and the steps that are complete; `last`: also one that is not."""
        if self._events:
            self.keep()
        if self._events:  # else the part was large
            self._finish(self._journal / f"{self._number():06d}.json")
        now = time.time()
        late = [one for one in self.open.values() if one.components is None and now - one.touched > self._wait]
        while len(self._ready) >= self._per_step or (last and self._ready):
            self._write([*self._ready.values()][: self._per_step], late if self._keep else [])
            late = [] if self._keep else late
        if not self._keep:
            self._forget(late)
        for path in [path for path, names in self._parts.items() if not names & self.open.keys()]:
            path.unlink(missing_ok=True)
            del self._parts[path]

    def close(self) -> int:
        """Writes what there is; returns the number of attempts that still wait for feedback, in the journal."""
        self.flush(last=True)
        self._lock.close()
        return len(self.open)

    def _number(self) -> int:
        return max((int(path.stem) for path in self._parts), default=0) + 1

    def _write(self, rewarded: list[Attempt], late: list[Attempt]) -> None:
        """Writes a step: rewarded attempts have the slots that are trained on, the others those behind them."""
        slots = [*enumerate(rewarded), *enumerate(late, self._per_step)]
        seen: Counter[str] = Counter()
        rows, said = [], []
        for slot, attempt in slots:
            rows += attempts.experience(attempt, self._source, self.step, slot, seen[attempt.task], self._decode)
            said += attempts.calls(attempt, self._source, self.step, slot)
            seen[attempt.task] += 1
        notes = [records.Feedback(f"{self._source.stage}/{one.id}", self._source.stage, self.step, slot, one.session,
                                  one.metadata) for slot, one in slots]
        trained = [row for row in rows if row.slot < self._per_step]
        rollout = records.Rollout(
            stage=self._source.stage, step=self.step, weights_version=0, attempts=self._per_step, rows=len(trained),
            failed_rows=0, tokens=sum(len(one.tokens) for one in said),
            rollout_seconds=sum(one.seconds for one in said), sync_seconds=0.0, probe_max_difference=None,
            other_seconds=0.0, evaluate_seconds=0.0, wait_seconds=0.0, resampled_groups=None, resample_rounds=None,
            missing_groups=None)
        for name, made in (("calls", said), ("feedback", notes), ("experience", rows), ("rollouts", [rollout])):
            tables.write(tables.step_file(self.directory, name, self.step), records.TABLES[name], made)
        self.step += 1
        self._forget([*rewarded, *late])

    def _forget(self, written: list[Attempt]) -> None:
        for one in written:
            self.open.pop(one.id, None)
            self._ready.pop(one.id, None)

    def _restore(self, done: list[int]) -> None:
        """Reads the attempts of the journal that are in no step."""
        paths = sorted(self._journal.glob("[0-9]" * 6 + ".json"))
        parts = {path: files.read_json(path, ADVICE) for path in paths}
        since = min((part["step"] for part in parts.values()), default=0)
        written = {name for step in done if step >= since for name in self._written(step)}
        for path, part in parts.items():
            for event in part["events"]:
                self._replay(event, written)
            self._parts[path] = _attempts(part["events"])
        self._forget([self.open[name] for name in self.torn if name in self.open])

    def _written(self, step: int) -> set[str]:
        path = tables.step_file(self.directory, "experience", step)
        rows = tables.read(path, records.Experience)
        return {one.split("/")[-2] for one in rows["experience_id"].to_pylist()}

    def _replay(self, event: dict, written: set[str]) -> None:
        if "reply" in event and event["attempt"] not in written:
            reply = Reply(**event["reply"])
            attempt = self.open.setdefault(event["attempt"], Attempt(event["attempt"], event["session"]))
            if event.get("place", len(attempt.replies)) != len(attempt.replies):
                self.torn.add(attempt.id)
            attempt.replies.append(reply)
            attempt.touched = reply.unix
        elif "feedback" in event:
            known = [self.open[name] for name in event["attempts"] if name in self.open]
            if event["attempts"][0] in written:
                self._forget(known)
            elif known:
                if len(known) < len(event["attempts"]):
                    self.torn |= {one.id for one in known}
                self._end(known, Feedback(**event["feedback"]))


def _attempts(events: list[dict]) -> set[str]:
    return {name for event in events for name in event.get("attempts", [event.get("attempt")])}


def journal_of(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.journal")
