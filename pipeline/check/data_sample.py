"""Draws rows at random from a data file, or from all files of a directory, and tells the columns of each.

Of a small file all is read. Of a large one it is blocks drawn at random, stretches of a jsonl file or row groups of a
Parquet file, and a row belongs to the block that it begins in: so every row is about as likely to be drawn as any
other, however long it or its neighbours are and however the file is sorted; exactly as likely where all is read, and in
a Parquet file where the row groups that are read hold `count` rows. The same call gives the same rows every time.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.store.data_files import (
    files_of_split,
    is_saved_dataset,
    parsed,
    refuse_same_names,
    saved_dataset,
    unreadable,
)
from pipeline.store.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

SEED = 0
WHOLE = 4 << 20  # bytes up to which a jsonl file is read whole, and that are read of a larger one
BLOCK = 16 << 10  # bytes of a stretch of it
ALL = 128 << 20  # bytes that are read of all files of a directory together, as far as one block of each allows

Row = dict[str, Any]


@dataclass
class Part:
    """A file (or dataset of save_to_disk): about how many rows it has, and its columns, those in structs dotted."""

    path: Path
    total: int
    columns: list[str]


@dataclass
class Sample:
    """Rows in random order, and the files that they are from."""

    rows: list[Row]
    parts: list[Part]

    @property
    def total(self) -> int:
        """About how many rows there are."""
        return sum(part.total for part in self.parts)


def sample(path: Path, split: str, count: int, wanted: Iterable[str]) -> Sample:
    """Up to `count` rows from all over one source, with at least the columns `wanted` that it has.

    Raises DataError when it, or its split, cannot be read.
    """
    draw, wanted = random.Random(SEED), tuple(wanted)
    if is_saved_dataset(path):
        return _of_dataset(path, split, count, wanted, draw)
    found = files_of_split(path, split) if path.is_dir() else [path]
    drawn = Sample([], [])
    for file in found:
        if file.suffix not in SAMPLERS:
            raise unreadable(file)
        more = SAMPLERS[file.suffix](file, count, ALL // len(found), wanted, draw)
        drawn = _together(drawn, more, count, draw)
    return drawn


def names(row: Row, prefix: str = "") -> Iterator[str]:
    """Columns of a row; those within a struct after a dot."""
    for name, value in row.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from names(value, f"{prefix}{name}.")


def _together(first: Sample, second: Sample, count: int, draw: random.Random) -> Sample:
    """Two samples as one in which each has the share that drawing from all of their rows would give it."""
    total = first.total + second.total
    most = min(count, total)
    own = sum(position < first.total for position in draw.sample(range(total), most))
    rows = first.rows[:own] + second.rows[:most - own]
    draw.shuffle(rows)
    return Sample(rows, first.parts + second.parts)


# --------------------------------------------------------------------------------------------------------------- jsonl


def _of_jsonl(path: Path, count: int, room: int, wanted: Iterable[str], draw: random.Random) -> Sample:
    """Every line of its blocks is parsed, so that of a small file each broken one is told."""
    size, room = path.stat().st_size, max(min(room, WHOLE), BLOCK)
    blocks = [(0, size)] if size <= room else [
        (at * BLOCK, min((at + 1) * BLOCK, size))
        for at in sorted(draw.sample(range(-(-size // BLOCK)), room // BLOCK))]
    with open(path, "rb") as file:
        lines = [found for begin, end in blocks for found in _lines(file, begin, end)]
        rows = [_row(path, at, line) for at, line in lines or islice(_lines(file, 0, size), 1)]
    columns = list(dict.fromkeys(name for row in rows for name in names(row)))
    total = max(len(lines) * size // max(sum(end - begin for begin, end in blocks), 1), len(rows))
    return Sample(draw.sample(rows, min(count, len(rows))), [Part(path, total, columns)])


def _lines(file, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of the lines, other than blank ones, that begin from byte `begin` on and before `end`."""
    file.seek(max(begin - 1, 0))
    if begin and not file.readline(end - begin + 1).endswith(b"\n"):
        return  # a line longer than the block
    while (at := file.tell()) < end and (line := file.readline()):
        if line.strip():
            yield at, line


def _row(path: Path, at: int, line: bytes) -> Row:
    try:
        return parsed(line, is_first=at == 0)
    except ValueError as error:
        with open(path, "rb") as file:
            number = sum(file.read(min(BLOCK, at - begin)).count(b"\n") for begin in range(0, at, BLOCK)) + 1
        raise DataError(f"{path}, line {number} {error}; needed one object a line.") from error


# ------------------------------------------------------------------------------------------- Parquet, and save_to_disk


def _of_parquet(path: Path, count: int, room: int, wanted: Iterable[str], draw: random.Random) -> Sample:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        refuse_same_names(path, file.schema_arrow.names)
        part = Part(path, file.metadata.num_rows, _columns(file.schema_arrow))
        kept = _outermost(wanted, file.schema_arrow.names)
        groups = _groups(file.metadata, kept, room, draw)
        there = sum(file.metadata.row_group(group).num_rows for group in groups)
        chosen = sorted(draw.sample(range(there), min(count, there)))
        batches = file.iter_batches(row_groups=groups, columns=kept) if kept else []
        rows = [row for batch in _chosen(batches, chosen) for row in batch.to_pylist()]
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file ({error}). Make it again.") from error
    draw.shuffle(rows)
    return Sample(rows, [part])


def _groups(metadata, columns: list[str], room: int, draw: random.Random) -> list[int]:
    """As many row groups as have `room` for their columns, bytes, by the average group; at least one.

    The first is drawn by its rows, the others evenly: with that a set is as likely as it has rows, and so every row of
    the file as likely to be in it and drawn of it (Midzuno 1951, "On the sampling system with probability proportionate
    to sum of sizes").
    """
    groups = list(map(metadata.row_group, range(metadata.num_row_groups)))
    chunks = (group.column(at) for group in groups for at in range(metadata.num_columns))
    size = sum(one.total_uncompressed_size for one in chunks if one.path_in_schema.split(".")[0] in columns)
    if size <= room or not metadata.num_rows:
        return list(range(len(groups)))
    [first] = draw.choices(range(len(groups)), [group.num_rows for group in groups])
    others = [at for at in range(len(groups)) if at != first]
    return sorted([first, *draw.sample(others, max(len(groups) * room // size, 1) - 1)])


def _chosen(batches: Iterable["pa.RecordBatch"], positions: list[int]) -> Iterator["pa.RecordBatch"]:
    """Of each batch the rows at these positions, which count through all of them and ascend."""
    import pyarrow as pa

    seen = 0
    for batch in batches:
        own = [at - seen for at in positions if seen <= at < seen + len(batch)]
        yield batch.take(pa.array(own, pa.int64()))  # of no position pyarrow cannot tell the type
        seen += len(batch)


def _of_dataset(path: Path, split: str, count: int, wanted: Iterable[str], draw: random.Random) -> Sample:
    dataset = saved_dataset(path, split)
    columns = _columns(dataset.features.arrow_schema)
    kept = dataset.select_columns(_outermost(wanted, dataset.column_names))
    positions = draw.sample(range(len(dataset)), min(count, len(dataset))) if kept.column_names else []
    return Sample([kept[at] for at in positions], [Part(path, len(dataset), columns)])


def _outermost(wanted: Iterable[str], there: list[str]) -> list[str]:
    """The columns, not those within structs, that have what is wanted."""
    return [name for name in there if any(one == name or one.startswith(f"{name}.") for one in wanted)]


def _columns(fields: Iterable["pa.Field"], prefix: str = "") -> list[str]:
    """As `names`, of a schema or a struct."""
    import pyarrow as pa

    found = []
    for one in fields:
        found.append(prefix + one.name)
        if pa.types.is_struct(one.type):
            found += _columns(one.type, f"{prefix}{one.name}.")
    return found


SAMPLERS: dict[str, Callable[..., Sample]] = {".jsonl": _of_jsonl, ".parquet": _of_parquet}
