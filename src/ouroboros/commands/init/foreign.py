"""Data files that stages do not read, for `ouro init` to write them again as jsonl: CSV, TSV, JSON lists, gzip, UTF-16.

Cells of CSV stay texts (007, NA and 1e5 are no numbers here); an empty cell is null.
"""

import csv
import gzip
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ouroboros.pipeline.store.data_files import parsed
from ouroboros.pipeline.store.errors import DataError

Row = dict[str, Any]
BYTE_ORDER = (b"\xff\xfe", b"\xfe\xff")  # of UTF-16
LONGEST_CELL = 1 << 28  # characters


def is_foreign(path: Path) -> bool:
    """Returns whether a file needs to be written again before stages can read it."""
    if not path.is_file():
        return False
    if path.suffix == ".gz":
        return Path(path.stem).suffix in READERS
    with open(path, "rb") as file:
        return path.suffix in READERS and (path.suffix != ".jsonl" or file.read(2) in BYTE_ORDER)


def rows_of(path: Path) -> Iterator[Row]:
    """Yields the rows of such a file. Raises DataError, with the file and the line."""
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    try:
        with _text(path) as file:
            yield from READERS[kind](path, file)
    except (UnicodeError, EOFError, gzip.BadGzipFile, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}); needed a whole {kind} file in UTF-8 or UTF-16.") from error


@contextmanager
def _text(path: Path) -> Iterator[IO[str]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
        code = "utf-16" if file.read(2) in BYTE_ORDER else "utf-8-sig"
    with opened(path, "rb") as file:
        yield io.TextIOWrapper(file, code, newline="")


def _of_csv(path: Path, file: IO[str]) -> Iterator[Row]:
    csv.field_size_limit(LONGEST_CELL)
    head = file.readline()
    file.seek(0)
    mark = "\t" if path.name.removesuffix(".gz").endswith(".tsv") else max(",;", key=head.count)
    table = csv.DictReader(file, delimiter=mark, strict=True)
    names = table.fieldnames or []
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{path} has several columns named {', '.join(twice)}; needed different names.")
    for row in table:
        if None in row or None in row.values():
            cells = len(row.pop(None, [])) + sum(value is not None for value in row.values())
            raise DataError(f"{path}, line {table.line_num}: {cells} cells; needed {len(names)}, as in the first line. "
                            f"Quote cells that contain {mark!r}.")
        yield {name: value if value != "" else None for name, value in row.items()}


def _of_json(path: Path, file: IO[str]) -> Iterator[Row]:
    """A list of objects, or one object a line."""
    while (first := file.read(1)).isspace():
        pass
    file.seek(0)
    if first != "[":
        yield from _of_lines(path, file)
        return
    try:
        rows = json.load(file)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no JSON ({error}); needed a list of objects, or one object a line.") from error
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise DataError(f"{path}, entry {number} is a {type(row).__name__}; needed a list of objects.")
        yield row


def _of_lines(path: Path, file: IO[str]) -> Iterator[Row]:
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                yield parsed(line.encode(), is_first=False)
            except ValueError as error:
                raise DataError(f"{path}, line {number} {error}; needed one object a line.") from error


READERS = {".csv": _of_csv, ".tsv": _of_csv, ".json": _of_json, ".jsonl": _of_lines}
