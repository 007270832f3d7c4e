"""A run as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing, from manifests and tables.

A stage is a process of the trace; in it, the stage, its explorer and its trainer are threads. An explorer step ends
when its last row was made; its parts lie before that in the order of their work. Of trainer steps the tables have
durations, waits included: the last one is set to end with the stage, and the others precede it without gaps; what is
left before the first is the start of the stage. Of a stage that only rewards, whose rows keep the times of the stage
that sampled them, the tables have no times: it is drawn whole. A resumed stage is drawn as if all its work followed its
last start.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from ouroboros.pipeline.results import query
from ouroboros.pipeline.results.view import Node, View
from ouroboros.pipeline.store import files

EXPLORER = ("wait_seconds", "sync_seconds", "evaluate_seconds", "rollout_seconds", "other_seconds")
TRAINER = ("train_wait_seconds", "train_other_seconds", "train_seconds", "publish_seconds")
EXPLORED = f"""SELECT stage, step, max(unix_seconds) AS ended, {', '.join(f'any_value(r.{name})' for name in EXPLORER)}
               FROM rollouts r JOIN experience e USING (run, stage, step) GROUP BY ALL ORDER BY stage, step"""
TRAINED = f"SELECT stage, step, seconds, {', '.join(TRAINER)} FROM steps ORDER BY stage, step"


def trace(shown: View) -> dict:
    """Returns a run in the trace event format of Chrome: JSON with times in microseconds since 1970."""
    session = query.session([shown])
    explored, trained = ({stage: [row[1:] for row in rows] for stage, rows in groupby(
        query.ask(session, question).rows, key=lambda row: row[0])} for question in (EXPLORED, TRAINED))
    events: list[dict] = []
    for number, stage in enumerate(shown.stages, 1):
        name = Path(stage.directory).name
        events += _named(number, "process_name", stage.name)
        span = _span(stage)
        for thread, (title, spans) in enumerate({
                "stage": [(stage.name, *span)] if span else [],
                "explorer": [] if stage.kind.only_rewards else list(_explorer(explored.get(name, []))),
                "trainer": list(_trainer(trained.get(name, []), sum(span))) if span else []}.items()):
            if spans:
                events += _named(number, "thread_name", title, thread)
                events += [{"ph": "X", "name": what, "pid": number, "tid": thread, "ts": begin, "dur": microseconds}
                           for what, begin, microseconds in spans]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"run": shown.run}}


def _named(process: int, kind: str, name: str, thread: int = 0) -> list[dict]:
    return [{"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}]


def _span(stage: Node) -> tuple[int, int] | None:
    """Returns the begin of a stage's last start and its length, microseconds; None until it is complete."""
    if not files.is_complete(stage.directory):
        return None
    manifest = files.read_json(Path(stage.directory) / files.MANIFEST)
    return _microseconds(manifest["started"]), _microseconds(manifest["seconds"])


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def _explorer(steps: list[Sequence]) -> Iterator[tuple[str, int, int]]:
    before = 0
    for step, ended, *seconds in steps:
        whole = sum(map(_microseconds, filter(None, seconds)))
        begin = max(_microseconds(ended) - whole, before)
        yield from _laid(f"explorer step {step}", begin, EXPLORER, seconds, whole)
        before = begin + whole


def _trainer(steps: list[Sequence], ended: int) -> Iterator[tuple[str, int, int]]:
    begin = ended - sum(_microseconds(seconds) for _, seconds, *_ in steps)
    for step, seconds, *parts in steps:
        whole = _microseconds(seconds)
        yield from _laid(f"trainer step {step}", begin, TRAINER, parts, whole)
        begin += whole


def _laid(title: str, begin: int, names: Sequence[str], seconds: Sequence[float | None], whole: int
          ) -> Iterator[tuple[str, int, int]]:
    """Returns a step, and within it its parts one after the other: (name, begin, length) each, microseconds. Spans of
    a thread are within each other or apart: viewers drop others."""
    yield title, begin, whole
    ended = begin + whole
    for name, one in zip(names, seconds, strict=True):
        if one:
            length = min(_microseconds(one), ended - begin)
            yield name.removesuffix("_seconds"), begin, length
            begin += length
