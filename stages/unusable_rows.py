"""Sampled rows that the stage `tasks` would reject, found before a run.

source: in the format of pipeline/check/samples.py.
"""

import json
from typing import Any

from operators.formats import MEDIA, TOOLS, read_records
from pipeline.check.data_sample import Row, Sample
from pipeline.settings.data import BufferFormat, Format
from pipeline.store.errors import DataError
from pipeline.store.harbor import UNSUPPORTED


def wanted(source: dict[str, Any]) -> list[str]:
    """The columns of a source's rows that are looked at."""
    named = {} if source["form"] is None else json.loads(source["form"])
    media = [name for names in MEDIA.values() for name in names]
    return [*source["columns"].values(), *media, TOOLS,
            *(column for key, column in named.items() if key.endswith("_key") and column)]


def judged(source: dict[str, Any], drawn: Sample) -> tuple[list[str], list[str]]:
    """(warnings, problems): a line about rejected rows. It is a problem where the set will lose more than the share
    buffer.max_rejected_ratio: counted where all rows were read, above twice that share in a sample. Of several files
    in a set it is a warning, since the others may make up for it.
    """
    lost = _reasons(source, drawn.rows)
    if not lost:
        return [], []
    count, allowed = len(drawn.rows), source["allowed"]
    line = (f"{source['key']}: {len(lost)} of {count} sampled rows cannot be used and are rejected. The first: "
            f"{lost[0]}. Correct the file or {source['format_key']}; a set may lose {allowed:.0%} "
            "(buffer.max_rejected_ratio).")
    most = allowed * count * (1 if count == drawn.total else 2)
    return ([], [line]) if source["alone"] and len(lost) > most else ([line], [])


def _reasons(source: dict[str, Any], rows: list[Row]) -> list[str]:
    """Why the stage `tasks` would reject rows, in their order."""
    if source["form"] is None or any(UNSUPPORTED in row for row in rows):  # Harbor tasks: see stages/sampled_rows.py
        return []
    kind = Format if source["purpose"] == "task" else BufferFormat
    try:
        made = list(read_records(rows, kind.partial(json.loads(source["form"])), source["purpose"], source["path"], 0))
    except DataError:  # a column that all sampled rows lack: see `problems`
        return []
    return [row.problem for row in made if row.problem is not None]
