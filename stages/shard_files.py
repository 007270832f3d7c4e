"""The files of a curation in progress: what is left of each shard of each set, until they become two tables."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ouroboros.operators import juicer, shards
from ouroboros.operators.curation import Dropped
from ouroboros.pipeline.job.context import commit
from ouroboros.pipeline.store import files, hashes, records, tables
from ouroboros.pipeline.store.records import Rejected, Task

PLACE = "curating"  # directory within that of the stage
UNUSABLE = ("format", "required_columns")  # operators by which records that cannot be used are dropped
FEATURE = "data_selector.feature_keys"  # in the reason of one that is no skipped Harbor task, and has a question too
BUCKET = 200_000  # tasks in memory at once where they are ordered

Name = tuple[str | None, str | None]  # taskset, kind of rows
Run = tuple[int, int, int]  # row group, its rows from and to
Curated = Callable[[list[dict], list[dict], list[Dropped]], tuple[list[Task], list[Rejected]]]


@dataclass
class Tally:
    """What became of rows. kept: by split. dropped: by operator. first: the first dropped row's operator and reason.
    counted, lost, problem: records that could be used or not, and why the first could not. pool: of the rows without a
    set."""

    kept: Counter = field(default_factory=Counter)
    dropped: Counter = field(default_factory=Counter)
    first: str | None = None
    counted: int = 0
    lost: int = 0
    problem: str | None = None
    pool: "Tally | None" = None

    def add(self, other: "Tally", to_pool: bool = False) -> None:
        self.kept.update(other.kept)
        self.dropped.update(other.dropped)
        self.first, self.problem = self.first or other.first, self.problem or other.problem
        self.counted, self.lost = self.counted + other.counted, self.lost + other.lost
        if to_pool:
            self.pool = self.pool or Tally()
            self.pool.add(other)


@contextlib.contextmanager
def curating(stage: Path, raw: Path, processes: int, operators: Sequence[Any]) -> Iterator[Path]:
    """A directory for the files; that of an interrupted run of the same rows and code. Afterwards it is deleted."""
    own = [files.hash_file(path) for one in operators if (path := getattr(one, "file_path", None))]  # of the user
    made_of = [hashes.entry_of(raw), processes, shards.MOST, commit(), own]
    place = stage / PLACE / files.hash_json(made_of)
    for other in (stage / PLACE).glob("*"):
        if other != place:
            files.remove_tree(other)
    yield place
    files.remove_tree(stage / PLACE)


def sets_of(raw: tables.Groups) -> list[tuple[Name, list[Run]]]:
    """The sets of a file in the order of their first rows, each curated by itself; demonstrations and pairs are one."""
    sets: dict[Name, list[Run]] = {}
    for group in range(len(raw)):
        names = raw.columns(group, ["taskset", "split"]).to_pydict()
        kinds = ("sft" if split == "preference" else split for split in names["split"])
        begin = 0
        for name, rows in groupby(zip(names["taskset"], kinds, strict=True)):
            end = begin + sum(1 for _ in rows)
            sets.setdefault(name, []).append((group, begin, end))
            begin = end
    return list(sets.items())


class ShardFiles:
    """The shards of one set: their rows, and the files that its curation makes of them."""

    def __init__(self, place: Path, raw: tables.Groups, runs: Sequence[Run], processes: int,
                 seen: Callable[[dict], dict[str, Any]], curated: Curated):
        """seen: a row as operators see it. curated: the rows of both tables, of all rows, kept and dropped ones."""
        size = shards.size(sum(end - begin for _, begin, end in runs), processes)
        self.place, self.raw, self.seen, self.curated = place, raw, seen, curated
        self.shards = [(group, first, min(first + size, end)) for group, begin, end in runs
                       for first in range(begin, end, size)]
        self.last: tuple[int, list[dict]] = (-1, [])  # the shard that was read last

    def job(self, operators: Sequence[Any]) -> shards.Job:
        return shards.Job(self.place, len(self.shards), self.load, self.finish, operators)

    def rows(self, shard: int) -> list[dict]:
        if self.last[0] != shard:
            group, begin, end = self.shards[shard]
            self.last = shard, self.raw.read(group).slice(begin, end - begin).to_pylist()
        return self.last[1]

    def load(self, shard: int) -> shards.Rows:
        rows = self.rows(shard)
        unusable = [Dropped(row["row"], UNUSABLE[0], row["problem"]) for row in rows if row["problem"] is not None]
        kept, dropped = juicer.required([self.seen(row) for row in rows if row["problem"] is None])
        return kept, unusable + dropped

    def finish(self, shard: int, kept: list[dict], dropped: list[Dropped]) -> None:
        rows = self.rows(shard)
        tasks, rejected = self.curated(rows, kept, dropped)
        places = pa.array([row.get("place") for row in kept], pa.int64())
        _write(self.file("tasks", shard), tables.to_arrow(tasks, Task).append_column("place", places))
        _write(self.file("rejected", shard), tables.to_arrow(rejected, Rejected))
        skipped = {row["row"] for row in rows if row["problem"] and row["question"] and FEATURE not in row["problem"]}
        lost = [one.reason for one in dropped if one.operator in UNUSABLE and one.row not in skipped]
        files.write_json(self.file("tally", shard), {
            "kept": Counter(task.split for task in tasks), "dropped": Counter(row.operator for row in rejected),
            "first": f"{rejected[0].operator}: {rejected[0].reason}" if rejected else None,
            "counted": len(rows) - len(skipped), "lost": len(lost), "problem": lost[0] if lost else None})

    def file(self, what: str, shard: int) -> Path:
        return self.place / f"{what}-{shard:06d}"

    def tally(self) -> Tally:
        total = Tally()
        for shard in range(len(self.shards)):
            found = files.read_json(self.file("tally", shard))
            total.add(Tally(**{**found, "kept": Counter(found["kept"]), "dropped": Counter(found["dropped"])}))
        return total

    def pieces(self, what: str) -> list[Path]:
        return [self.file(what, shard) for shard in range(len(self.shards))]


def finish(stage: Path, done: Sequence[ShardFiles], ordered: bool) -> None:
    """Joins the files of all sets to the tables of the stage. ordered: the tasks of a set by their place."""
    tasks = (table for one in done
             for table in (_in_order(one) if ordered else map(pq.read_table, one.pieces("tasks"))))
    names = records.schema(Task).names
    tables.write_groups(stage / tables.LOCATIONS["tasks"], Task, (one.select(names) for one in tasks if len(one)))
    rejected = (pq.read_table(piece) for one in done for piece in one.pieces("rejected"))
    tables.write_groups(stage / tables.LOCATIONS["rejected"], Rejected, (one for one in rejected if len(one)))


def _write(path: Path, table: pa.Table) -> None:
    files.write_atomic(path, partial(pq.write_table, table, **tables.FORMAT))


def _in_order(made: ShardFiles) -> Iterator[pa.Table]:
    """The tasks of a set by place: spread over files for BUCKET places each, of which each fits in memory."""
    import pyarrow.compute as pc

    parts: dict[int, pq.ParquetWriter] = {}
    with contextlib.ExitStack() as stack:
        for piece in made.pieces("tasks"):
            table = pq.read_table(piece)
            of_row = pc.divide(table["place"], BUCKET)
            for bucket in pc.unique(of_row).to_pylist():
                if bucket not in parts:
                    path = made.place / f"places-{bucket:06d}"
                    parts[bucket] = stack.enter_context(pq.ParquetWriter(path, table.schema, **tables.FORMAT))
                parts[bucket].write_table(table.filter(pc.equal(of_row, bucket)))
    for bucket in sorted(parts):
        table = pq.read_table(made.place / f"places-{bucket:06d}").sort_by("place")
        yield from (table.slice(begin, shards.MOST) for begin in range(0, len(table), shards.MOST))
