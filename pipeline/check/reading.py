"""Reads data files: samples rows of one, or of all files of a directory, with the columns of each, or counts rows.

A small file is read whole. From a large file, random blocks are read (stretches of a jsonl file, row groups of a
Parquet file), and a row belongs to the block in which it begins. Every row is therefore about equally likely to be
drawn, whatever the row lengths or the sort order; exactly equally where all is read, and in a Parquet file where the
row groups read hold `count` rows. The sample is deterministic.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ouroboros.pipeline.settings.arguments.binding import EVERY
from ouroboros.pipeline.store import harbor
from ouroboros.pipeline.store.data_files import (
    as_meant,
    files_of_split,
    is_saved_dataset,
    parsed,
    refuse_same_names,
    saved_dataset,
    unreadable,
)
from ouroboros.pipeline.store.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

SEED = 0
WHOLE = 4 << 20  # bytes: jsonl files up to this size are read whole; of larger ones this much is read
BLOCK = 16 << 10  # bytes per block of a larger file
MOST_NAMED = 5  # rows whose numbers a message has
ALL = 128 << 20  # bytes read in total from a directory, as far as one block per file allows
LARGEST = 2**30  # bytes: larger jsonl files are not counted; this size takes about a second
CHUNK = 2**20

Row = dict[str, Any]

@dataclass
class Part:
    """A file (or save_to_disk dataset): its approximate row count and its columns, nested ones dotted."""

    path: Path
    total: int
    columns: list[str]


@dataclass
class Sample:
    """Rows in random order, and the files they come from. places: of each row, its file, and its number from 1; of a
    jsonl file the byte at which its line begins."""

    rows: list[Row]
    parts: list[Part]
    places: list[tuple[Path, int]] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Returns the approximate number of rows."""
        return sum(part.total for part in self.parts)

    def named(self, positions: Iterable[int]) -> str:
        """Names sampled rows: `rows 3, 17, 40 and 5 more`; of several files, with the file of each."""
        found = sorted(self.places[at] for at in positions)
        shown = [(file, _line_number(file, at) if file.suffix == ".jsonl" else at) for file, at in found[:MOST_NAMED]]
        alone = len({file for file, _ in self.places}) == 1
        words = ", ".join(str(at) if alone else f"{at} of {file.name}" for file, at in shown)
        more = f" and {len(found) - len(shown)} more" if len(found) > len(shown) else ""
        return f"row{'s' * (len(found) > 1)} {words}{more}"


def sample(path: Path, split: str, count: int, wanted: Iterable[str]) -> Sample:
    """Samples up to `count` rows across one source, with at least the `wanted` columns that it has.

    Raises DataError when the source, or its split, cannot be read.
    """
    draw, wanted = random.Random(SEED), tuple(wanted)
    if is_saved_dataset(path):
        return _of_dataset(path, split, count, wanted, draw)
    found = files_of_split(path, split) if path.is_dir() else [path]
    drawn, parts, total = [], [], 0
    for file in found:
        if file.suffix not in SAMPLERS or (file.suffix == ".toml" and file.name != harbor.FILE):
            raise unreadable(file)
        more = SAMPLERS[file.suffix](file, count, ALL // len(found), wanted, draw)
        drawn = _together(drawn, total, more, count, draw)
        parts += more.parts
        total += more.total
    return Sample([row for row, _ in drawn], parts, [place for _, place in drawn])


def names(row: Row, prefix: str = "") -> Iterator[str]:
    """Returns the columns of a row; struct fields are dotted."""
    for name, value in row.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from names(value, f"{prefix}{name}.")


def _together(rows: list[tuple], total: int, more: Sample, count: int, draw: random.Random) -> list[tuple]:
    """Merges (row, place) sampled of `total` with a sample of others, so that each keeps its share of the combined
    rows."""
    both = total + more.total
    most = min(count, both)
    own = sum(position < total for position in draw.sample(range(both), most))
    merged = rows[:own] + list(zip(more.rows, more.places, strict=True))[:most - own]
    draw.shuffle(merged)
    return merged


def _of_jsonl(path: Path, count: int, room: int, wanted: Iterable[str], draw: random.Random) -> Sample:
    """Samples a jsonl file; parses every line of the blocks, so that each broken line of a small file is reported."""
    size, room = path.stat().st_size, max(min(room, WHOLE), BLOCK)
    blocks = [(0, size)] if size <= room else [
        (at * BLOCK, min((at + 1) * BLOCK, size))
        for at in sorted(draw.sample(range(-(-size // BLOCK)), room // BLOCK))]
    with open(path, "rb") as file:
        lines = [found for begin, end in blocks for found in _lines(file, begin, end)]
        rows = [(_row(path, at, line), (path, at)) for at, line in lines or islice(_lines(file, 0, size), 1)]
    columns = list(dict.fromkeys(name for row, _ in rows for name in names(row)))
    total = max(len(lines) * size // max(sum(end - begin for begin, end in blocks), 1), len(rows))
    drawn = draw.sample(rows, min(count, len(rows)))
    return Sample([row for row, _ in drawn], [Part(path, total, columns)], [place for _, place in drawn])


def _lines(file, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yields (offset, line) of the non-blank lines that start in [`begin`, `end`)."""
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
        raise DataError(f"{path}, line {_line_number(path, at)} {error}; needed one object a line.") from error


def _line_number(path: Path, at: int) -> int:
    """The number, from 1, of the line that begins at a byte."""
    with open(path, "rb") as file:
        return sum(file.read(min(BLOCK, at - begin)).count(b"\n") for begin in range(0, at, BLOCK)) + 1


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
        rows = list(_chosen(batches, chosen))
        places = [(path, number) for number in _numbers(file.metadata, groups, chosen)][:len(rows)]
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file ({error}). Make it again.") from error
    both = list(zip(rows, places, strict=True))
    draw.shuffle(both)
    return Sample([row for row, _ in both], [part], [place for _, place in both])


def _numbers(metadata, groups: list[int], chosen: list[int]) -> list[int]:
    """The numbers in the file, from 1, of rows at these positions, counted over some of its row groups."""
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    begins = list(accumulate(sizes, initial=0))
    rows = [row for group in groups for row in range(begins[group], begins[group + 1])]
    return [rows[at] + 1 for at in chosen]


def _groups(metadata, columns: list[str], room: int, draw: random.Random) -> list[int]:
    """Selects as many row groups as fit `room` bytes at the average size of their columns; at least one.

    The first is drawn with probability proportional to its rows, the others uniformly. The probability of a set is then
    proportional to its rows, so every row of the file is equally likely to be selected and drawn (Midzuno 1951, "On the
    sampling system with probability proportionate to sum of sizes").
    """
    groups = list(map(metadata.row_group, range(metadata.num_row_groups)))
    chunks = (group.column(at) for group in groups for at in range(metadata.num_columns))
    size = sum(one.total_uncompressed_size for one in chunks if one.path_in_schema.split(".")[0] in columns)
    if size <= room or not metadata.num_rows:
        return list(range(len(groups)))
    [first] = draw.choices(range(len(groups)), [group.num_rows for group in groups])
    others = [at for at in range(len(groups)) if at != first]
    return sorted([first, *draw.sample(others, max(len(groups) * room // size, 1) - 1)])


def _chosen(batches: Iterable["pa.RecordBatch"], positions: list[int]) -> Iterator[Row]:
    """Yields the rows at these ascending positions, counted over all batches."""
    seen = 0
    for batch in batches:
        for at in positions:
            if seen <= at < seen + len(batch):
                row = batch.slice(at - seen, 1).to_pylist()  # `take` has no kernel for Arrow's view types
                yield from as_meant(row, batch.schema)
        seen += len(batch)


def _of_dataset(path: Path, split: str, count: int, wanted: Iterable[str], draw: random.Random) -> Sample:
    dataset = saved_dataset(path, split)
    columns = _columns(dataset.features.arrow_schema)
    kept = dataset.select_columns(_outermost(wanted, dataset.column_names))
    positions = draw.sample(range(len(dataset)), min(count, len(dataset))) if kept.column_names else []
    rows = as_meant((kept[at] for at in positions), dataset.features.arrow_schema)
    return Sample(list(rows), [Part(path, len(dataset), columns)], [(path, at + 1) for at in positions])


def _outermost(wanted: Iterable[str], there: list[str]) -> list[str]:
    """Returns the top-level columns that contain the wanted ones; EVERY: all."""
    return [name for name in there if any(one in (name, EVERY) or one.startswith(f"{name}.") for one in wanted)]


def _columns(fields: Iterable["pa.Field"], prefix: str = "") -> list[str]:
    """Does the same as `names` for a schema or a struct."""
    import pyarrow as pa

    found = []
    for one in fields:
        found.append(prefix + one.name)
        if pa.types.is_struct(one.type):
            found += _columns(one.type, f"{prefix}{one.name}.")
    return found


def _of_harbor(path: Path, count: int, room: int, wanted: Iterable[str], draw: random.Random) -> Sample:
    """Returns the only row of a Harbor task."""
    row = harbor.read_task(path.parent).record()
    return Sample([row][:count], [Part(path, 1, list(row))], [(path, 1)][:count])


def rows_at(path: Path, split: str) -> int | None:
    """Returns the rows of a file, or of a split's files below a directory."""
    if is_saved_dataset(path) or not (path.is_file() or path.is_dir()):
        return None
    try:
        found = files_of_split(path, split) if path.is_dir() else [path]
    except DataError:  # file errors are reported when the file is sampled
        return None
    counts = [_rows_of_file(file, file.stat().st_mtime_ns) for file in found]
    return None if None in counts else sum(counts)


@cache
def _rows_of_file(path: Path, changed: int) -> int | None:
    """Returns the rows of a Parquet file (from its footer) or of a jsonl file (its lines). changed: its mtime."""
    if path.name == harbor.FILE:
        return 1
    if path.suffix not in (".jsonl", ".parquet"):
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.suffix == ".parquet":
            return pq.read_metadata(path).num_rows
        return _line_count(path) if path.stat().st_size <= LARGEST else None
    except (pa.ArrowException, OSError):  # as above
        return None


def _line_count(path: Path) -> int | None:
    """Returns the lines of a file; None where it does not begin with an object, and so is no jsonl."""
    count, last = 0, b"\n"
    with open(path, "rb") as file:
        if (begin := file.read(CHUNK).lstrip(b"\xef\xbb\xbf \t\r\n")) and not begin.startswith(b"{"):
            return None
        file.seek(0)
        while chunk := file.read(CHUNK):
            count, last = count + chunk.count(b"\n"), chunk[-1:]
    return count + (last != b"\n")


SAMPLERS: dict[str, Callable[..., Sample]] = {".jsonl": _of_jsonl, ".parquet": _of_parquet, ".toml": _of_harbor}
