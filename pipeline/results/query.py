"""`ouro sql`: one read-only query over the tables of one or several runs, as a table, CSV, JSON or a file."""

import contextlib
import csv
import io
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from ouroboros.pipeline.results.view import View
from ouroboros.pipeline.store import files, read_only, tables
from ouroboros.pipeline.store.errors import QueryError, nearest, pick

NESTED = (list, tuple, dict)  # what DuckDB returns for lists, structs and maps
WIDEST = 60  # characters per cell in the table format, or what the line has left; CSV and JSON are never cut
LINE = 200  # characters of a line where there is no terminal
NOISE = 1e-15  # smaller values are shown as 0: sums of numbers near 1 that cancel leave 1e-16
READERS = {".parquet": "read_parquet", ".csv": "read_csv", ".json": "read_json", ".jsonl": "read_json"}
BATCH_ROWS = 65_536  # rows of an exported file that are in memory at once


@dataclass(frozen=True)
class Answer:
    """Columns and rows of a query's result."""

    columns: list[str]
    rows: list[tuple]


def session(runs: Sequence[View], joined: dict[str, Path] | None = None):
    """Opens a read-only DuckDB session with the views of pipeline/store/tables.py over stages of the given runs.

    joined: further views by name, each over one file of the user's. Afterwards the session can open only these files
    and the stages' directories. Raises QueryError for a view name or file that cannot be used.
    """
    pairs = [(view.run, stage.directory) for view in runs for stage in view.stages]
    connection = tables.connect(pairs)
    for name, path in (joined or {}).items():
        _add_view(connection, name, path)
    connection.execute("SET allowed_directories = $1", [[f"{Path(d).absolute()}/" for _, d in pairs]])
    connection.execute("SET allowed_paths = $1", [[str(path.absolute()) for path in (joined or {}).values()]])
    read_only.lock(connection)
    return connection


def _add_view(connection, name: str, path: Path) -> None:
    import duckdb

    if not name.isidentifier() or name in tables.LOCATIONS:
        raise QueryError(f"--with {name}={path}: '{name}' cannot name a view; needed letters, digits and _, and none "
                         f"of {', '.join(tables.LOCATIONS)}")
    if (reader := READERS.get(path.suffix.lower())) is None:
        raise QueryError(f"--with {name}={path}: needed a file that ends in {', '.join(READERS)}.")
    files.require_file(path, f"--with {name}={path}")
    try:
        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {reader}({tables.literal(path.absolute())})")
    except duckdb.Error as error:
        raise QueryError(f"--with {name}={path} cannot be read: {error}") from error


def require_read_only(connection, question: str) -> None:
    """Raises QueryError unless DuckDB parses the text as exactly one SELECT (or EXPLAIN of one)."""
    import duckdb

    try:
        found = read_only.refused_statements(connection, question)
    except duckdb.Error as error:
        raise _mistake(connection, question, error) from error
    if found == "":
        raise QueryError("an empty question; needed SQL, such as: SELECT model, metric, value FROM scores")
    if found:
        raise QueryError(f"found {found}; needed exactly one SELECT, or EXPLAIN or EXPLAIN ANALYZE of one, for `ouro "
                         "sql` only reads. --out FILE.parquet exports the answer, --with name=FILE joins a file of "
                         "yours; PIVOT needs its values (ON x IN (...)).")


@contextlib.contextmanager
def time_limit(connection, seconds: int) -> Iterator[None]:
    """Interrupts the connection's query after this time, which is then a QueryError."""
    import duckdb

    with read_only.interrupted_after(connection, seconds) as expired:
        try:
            yield
        except (duckdb.InterruptException, QueryError) as error:  # an export wraps the former
            if not expired.is_set():
                raise
            raise QueryError(f"no answer after {seconds} s (--timeout). Give it longer, `--timeout {10 * seconds}`, or "
                             "ask for less: a recursive WITH needs a condition that ends it, a join one that selects "
                             "rows.") from error


def ask(connection, question: str, most: int | None = None) -> Answer:
    """Returns the answer to one query, at most `most` of its rows. Raises QueryError with DuckDB's message, the views
    and their columns; DataError when a file cannot be read."""
    done = _checked(connection, question, lambda: connection.execute(question))
    fetch = done.fetchall if most is None else partial(done.fetchmany, most)
    return Answer([column[0] for column in done.description or []], _checked(connection, question, fetch))


def relation(connection, question: str):
    """Returns the answer to one SELECT as a relation of DuckDB. Raises QueryError for anything else."""
    require_read_only(connection, question)
    return _checked(connection, question, lambda: connection.sql(question))


def export(connection, question: str, path: Path) -> int:
    """Writes the answer to FILE.parquet or FILE.csv in batches; returns the number of rows. Raises like `ask`."""
    if (write := WRITERS.get(path.suffix.lower())) is None:
        raise QueryError(f"--out {path}: needed a file that ends in {' or '.join(WRITERS)}.")
    counted: list[int] = []

    def export_to(temporary: Path) -> None:
        write(connection.sql(question).to_arrow_reader(BATCH_ROWS), temporary, counted)

    try:
        _checked(connection, question, lambda: files.write_atomic(path, export_to))
    except OSError as error:
        raise QueryError(f"--out {path} cannot be written: {error.strerror or error}.") from error
    return sum(counted)


def _write_parquet(batches, path: Path, counted: list[int]) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(path, batches.schema, compression="zstd") as file:
        for batch in batches:
            file.write_batch(batch)
            counted.append(batch.num_rows)


def _write_csv(batches, path: Path, counted: list[int]) -> None:
    names = batches.schema.names
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(as_csv(Answer(names, [])) + "\n")
        for batch in batches:
            rows = [tuple(row) for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
            file.write(as_csv(Answer(names, rows), header=False) + "\n")
            counted.append(batch.num_rows)


WRITERS = {".parquet": _write_parquet, ".csv": _write_csv}


def _checked(connection, question: str, work: Callable[[], Any]) -> Any:
    """Returns the result of `work`; converts DuckDB's errors to ours."""
    import duckdb

    try:
        return work()
    except duckdb.InterruptException:  # of time_limit
        raise
    except duckdb.Error as error:
        if not isinstance(error, duckdb.BinderException | duckdb.CatalogException | duckdb.ParserException):
            ((places,),) = connection.execute("SELECT current_setting('allowed_directories')").fetchall()
            tables.refuse_damaged(error, map(Path, places))
        raise _mistake(connection, question, error) from error
    except RuntimeError as error:  # raised by DuckDB on Ctrl-C
        if "interrupted" in str(error):
            raise KeyboardInterrupt from error
        raise


def _mistake(connection, question: str, error: Exception) -> QueryError:
    """Returns DuckDB's message, and but for wrong syntax the columns of the views in the question, or of all."""
    text = str(error)
    if text.startswith("Parser Error"):  # no name of a view or column would help
        return QueryError(text)
    if absent := re.search(r"Table with name (\S+) does not exist!", text):  # DuckDB proposes its own tables
        text = f"no table is called {absent[1]}.{nearest(absent[1], tables.LOCATIONS)}"
    words = set(re.findall(r"\w+", question.lower()))
    named = [name for name in tables.LOCATIONS if name in words]
    others = [name for name in tables.LOCATIONS if name not in words] if named else []
    more = f"\n  others: {', '.join(others)}" if others else ""
    return QueryError(f"{text}\n\nThe views and their columns:\n{columns_of_views(connection, named)}{more}")


def columns_of_views(connection, names: Sequence[str] = ()) -> str:
    """Returns one line per view: `tasks: run, task_id, ...`. names: of the views; default: all."""
    lines = []
    for name in names or tables.LOCATIONS:
        described = connection.execute(f"DESCRIBE {name}").fetchall()
        lines.append(f"  {name}: {', '.join(row[0] for row in described)}")
    return "\n".join(lines)


def as_table(answer: Answer) -> str:
    """Returns aligned columns and the number of rows. Where one column alone is too wide for WIDEST, it gets what the
    line has left."""
    count, texts = len(answer.rows), [[_text(value) for value in row] for row in answer.rows]
    wide = [max(map(len, column), default=0) for column in zip(*texts, strict=True)]
    others = [max(width, len(name)) + 2 for width, name in zip(wide, answer.columns, strict=False) if width <= WIDEST]
    line = shutil.get_terminal_size((LINE, 0)).columns
    room = max(WIDEST, line - sum(others)) if len(others) == len(wide) - 1 else WIDEST
    cut = sum(len(text) > room for row in texts for text in row)
    more = f"; {cut} cell{'' if cut == 1 else 's'} cut, which --format json and csv show whole" if cut else ""
    return f"{aligned(answer.columns, answer.rows, room)}\n({count} row{'' if count == 1 else 's'}{more})"


def aligned(columns: Sequence[str], rows: Sequence[Sequence[Any]], room: int = WIDEST) -> str:
    """Aligns columns, numbers to the right; escapes control characters, because rollout text is untrusted.

    room: characters of a cell.
    """
    import tabulate

    tabulate.MIN_PADDING = 0  # the width of a column's widest cell; no argument sets it
    numbers = [all(v in (None, "") or type(v) in (int, float, Decimal) for v in column)
               for column in zip(*rows, strict=True)] or [False] * len(columns)
    return tabulate.tabulate([[_cell(value, room) for value in row] for row in rows], [_printable(c) for c in columns],
                             "simple", disable_numparse=True, preserve_whitespace=True,
                             colalign=["right" if number else "left" for number in numbers])


def _cell(value: Any, room: int) -> str:
    text, half = _text(value), room // 2  # the end of an error or a prompt says as much as its beginning
    return text if len(text) <= room else f"{text[: half - 1]}…{text[-half:]}"


def _text(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return short(value)
    return _printable(json.dumps(plain(value), ensure_ascii=False) if isinstance(value, NESTED) else str(value))


def short(value: float, digits: int = 6) -> str:
    """Formats a float with this number of digits, and as 0 if it differs from 0 only by rounding errors."""
    return f"{value if abs(value) >= NOISE else 0.0:.{digits}g}"


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def as_csv(answer: Answer, header: bool = True) -> str:
    """Returns RFC 4180; NULL is an empty cell, a list or map is JSON."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(answer.columns)
    for row in answer.rows:
        writer.writerow([json.dumps(plain(v), ensure_ascii=False) if isinstance(v, NESTED) else v for v in row])
    return text.getvalue().rstrip("\n")


def as_json(answer: Answer) -> str:
    """Returns a list of objects, one per row; NULL and numbers without a JSON form (NaN, infinity) are null."""
    names = _distinct(answer.columns)
    rows = [dict(zip(names, map(plain, row), strict=True)) for row in answer.rows]
    return json.dumps(rows, ensure_ascii=False, indent=1)


def _distinct(columns: list[str]) -> list[str]:
    """Appends _2, _3 ... to repeated column names, so that no value of an object is lost."""
    seen: dict[str, int] = {}
    names = []
    for column in columns:
        seen[column] = seen.get(column, 0) + 1
        names.append(column if seen[column] == 1 else f"{column}_{seen[column]}")
    return names


def plain(value: Any) -> Any:
    """Converts a DuckDB value to JSON types."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (float, Decimal)):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def show(answer: Answer, form: str) -> str:
    """Formats the answer in one of FORMATS; empty for a statement without a result."""
    return pick(FORMATS, form, "format")(answer) if answer.columns else ""


FORMATS = {"table": as_table, "csv": as_csv, "json": as_json}
