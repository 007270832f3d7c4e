"""`ouro sql`: one question to the tables of a run (or of several), printed as a table, CSV or JSON."""

import csv
import io
import json
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pipeline import tables
from pipeline.errors import QueryError, pick
from pipeline.view import View

NESTED = (list, tuple, dict)  # what DuckDB returns for lists, structs and maps
WIDEST = 60  # characters of a cell in the table format; CSV and JSON are never cut


@dataclass(frozen=True)
class Answer:
    """Columns and rows of a query's result."""

    columns: list[str]
    rows: list[tuple]


def session(runs: Sequence[View]):
    """A DuckDB session with the views of pipeline/tables.py over the stages of the given runs."""
    return tables.connect((view.run, stage.directory) for view in runs for stage in view.stages)


def ask(connection, question: str) -> Answer:
    """Runs one question. Raises QueryError with DuckDB's message, the views and their columns; DataError when a file
    cannot be read."""
    import duckdb

    try:
        done = connection.execute(question)
        if done is None:  # no statement in it
            raise QueryError("an empty question; needed SQL, such as: SELECT model, metric, value FROM scores")
        return Answer([column[0] for column in done.description or []], done.fetchall())
    except duckdb.Error as error:
        tables.refuse_damaged(error)
        raise QueryError(f"{error}\n\nThe views and their columns:\n{columns_of_views(connection)}") from error


def columns_of_views(connection) -> str:
    """One line per view: `tasks: run, task_id, ...`."""
    lines = []
    for name in tables.LOCATIONS:
        described = connection.execute(f"DESCRIBE {name}").fetchall()
        lines.append(f"  {name}: {', '.join(row[0] for row in described)}")
    return "\n".join(lines)


def as_table(answer: Answer) -> str:
    """Aligned columns, numbers to the right; control characters escaped, for rollout text is untrusted."""
    cells = [[_cell(value) for value in row] for row in answer.rows]
    widths = [max(map(_width, column)) for column in zip(answer.columns, *cells, strict=True)]
    right = [all(v is None or (isinstance(v, (int, float, Decimal)) and not isinstance(v, bool)) for v in column)
             for column in zip(*answer.rows, strict=True)] or [False] * len(widths)

    def line(row: Sequence[str]) -> str:
        padded = [" " * (w - _width(c)) + c if r else c + " " * (w - _width(c))
                  for c, w, r in zip(row, widths, right, strict=True)]
        return "  ".join(padded).rstrip()

    body = [line(answer.columns), "  ".join("-" * w for w in widths), *map(line, cells)]
    return "\n".join([*body, f"({len(cells)} row{'' if len(cells) == 1 else 's'})"])


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = json.dumps(plain(value), ensure_ascii=False) if isinstance(value, NESTED) else str(value)
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"


def _width(text: str) -> int:
    """Columns on a terminal: wide characters take two, combining ones none."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def as_csv(answer: Answer) -> str:
    """RFC 4180 with a header; NULL is an empty cell, a list or map is JSON."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(answer.columns)
    for row in answer.rows:
        writer.writerow([json.dumps(plain(v), ensure_ascii=False) if isinstance(v, NESTED) else v
                         for v in row])
    return text.getvalue().rstrip("\n")


def as_json(answer: Answer) -> str:
    """A list of objects, one a row; NULL and numbers that JSON does not know (NaN, infinity) are null."""
    names = _distinct(answer.columns)
    rows = [dict(zip(names, map(plain, row), strict=True)) for row in answer.rows]
    return json.dumps(rows, ensure_ascii=False, indent=1)


def _distinct(columns: list[str]) -> list[str]:
    """Column names with _2, _3 ... behind repeated ones, so that no value of an object is lost."""
    seen: dict[str, int] = {}
    names = []
    for column in columns:
        seen[column] = seen.get(column, 0) + 1
        names.append(column if seen[column] == 1 else f"{column}_{seen[column]}")
    return names


def plain(value: Any) -> Any:
    """A DuckDB value as JSON types."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (float, Decimal)):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def show(answer: Answer, form: str) -> str:
    """The answer in one of FORMATS; a statement without a result shows nothing."""
    return pick(FORMATS, form, "format")(answer) if answer.columns else ""


FORMATS = {"table": as_table, "csv": as_csv, "json": as_json}
