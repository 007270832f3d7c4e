"""Runs a recipe over more rows than memory holds: shard after shard, with its state in files.

Mappers and filters pass over the rows of a shard. A deduplicator or selector ends a phase: it reads its column of all
shards (operators/juicer_whole.py), and the next phase begins with its verdicts. Every shard of a phase is a file, so a
run that was interrupted goes on with the first one that is missing; so are verdicts, since a selector may draw at
random.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from ouroboros.operators import juicer
from ouroboros.operators.curation import Dropped, Row
from ouroboros.operators.juicer_processes import share
from ouroboros.operators.task_priority import Priority
from ouroboros.pipeline.store import files

LEAST, MOST = 1000, 10_000  # rows of a shard

Rows = tuple[list[Row], list[Dropped]]


@dataclass(frozen=True)
class Job:
    """A recipe over shards. load: the rows of a shard that operators see, and those dropped before. finish: takes what
    is left of a shard, and all that was dropped of it. operators: of Data-Juicer, and a Priority as the last one."""

    directory: Path
    count: int
    load: Callable[[int], Rows]
    finish: Callable[[int, list[Row], list[Dropped]], None]
    operators: Sequence[Any]

    def file(self, phase: int, shard: int, what: str) -> Path:
        return self.directory / f"{what}-{phase}-{shard:06d}"


def size(rows: int, processes: int) -> int:
    """Returns the number of rows of a shard, small enough that each process has rows."""
    return min(max(-(-rows // processes), LEAST), MOST)


def run(job: Job, processes: int, done: Callable[[], None]) -> None:
    """Curates every shard. processes: that share them; the result is the same. done: is called after each shard.

    Raises StageError, or the operator's own OuroError, with the operator's name when one fails.
    """
    job.directory.mkdir(parents=True, exist_ok=True)
    phases = _phases(job.operators)
    asks = any(hasattr(operator, "asked") for operator in job.operators)
    for phase, (operators, last) in enumerate(phases):
        work = partial(_curate, job, phase, operators, last, phases[phase - 1][1] if phase else None,
                       processes if asks else 1)
        missing = [one for one in range(job.count) if not job.file(phase, one, "rows").exists()]
        if asks or processes == 1 or len(missing) < 2:
            for one in missing:
                work(one)
                done()
        else:
            names = [repr(one._name) for one in [*operators, *([last.operator] if last else [])]]
            subject = "one of the processes that share rows"
            subject = f"operators {', '.join(names)}: {subject}" if names else subject
            share(work, missing, min(processes, len(missing)), subject, done=done)
        if last is not None and not job.file(phase, job.count - 1, "verdicts").exists():
            _judge(job, phase, last)


def _phases(operators: Sequence[Any]) -> list[tuple[list, Any]]:
    """Mappers and filters with the operator that looks at all rows after them; None after the last ones."""
    phases: list[tuple[list, Any]] = [([], None)]
    for operator in operators:
        if judges := operator if isinstance(operator, Priority) else juicer.whole(operator):
            phases[-1] = (phases[-1][0], judges)
            phases.append(([], None))
        else:
            phases[-1][0].append(operator)
    return phases


def _curate(job: Job, phase: int, operators: list, last: Any, before: Any, calls: int, shard: int) -> None:
    """One shard in one phase. before: the operator that judged all rows after the phase before."""
    kept, dropped = job.load(shard) if phase == 0 else _judged(job, phase - 1, before, shard)
    for operator in operators:
        kept, gone = juicer.run(operator, kept, calls)
        dropped = [*dropped, *gone]
    if last is None:
        job.finish(shard, kept, dropped)
        _save(job.file(phase, shard, "rows"), None)
        return
    with juicer.named(last.operator, kept):
        table = last.column(kept)
    files.write_atomic(job.file(phase, shard, "column"), partial(_write_table, table))
    _save(job.file(phase, shard, "rows"), (kept, dropped))


def _judge(job: Job, phase: int, last: Any) -> None:
    """Writes the verdicts on every shard; those on the last one at the end, by which a resumed run knows them whole."""
    def tables() -> Iterator[pa.Table]:
        return (_read_table(job.file(phase, shard, "column")) for shard in range(job.count))

    with juicer.named(last.operator):
        verdicts = last.judge(tables)
    for shard, one in enumerate(verdicts):
        _save(job.file(phase, shard, "verdicts"), one)


def _judged(job: Job, phase: int, operator: Any, shard: int) -> Rows:
    kept, dropped = _load(job.file(phase, shard, "rows"))
    kept, gone = operator.apply(kept, _load(job.file(phase, shard, "verdicts")))
    return kept, [*dropped, *gone]


def _save(path: Path, value: Any) -> None:
    """Writes rows as they are: statistics of operators may be of any type."""
    def write(temporary: Path) -> None:
        with pa.output_stream(str(temporary), compression="zstd") as stream:
            pickle.dump(value, stream, protocol=pickle.HIGHEST_PROTOCOL)

    files.write_atomic(path, write)


def _load(path: Path) -> Any:
    with pa.input_stream(str(path), compression="zstd") as stream:
        return pickle.load(stream)


def _write_table(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _read_table(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()
