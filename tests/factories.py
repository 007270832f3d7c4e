"""Rows for tests: a record with plain defaults, of which a test states only the columns it is about."""

import dataclasses
from typing import Any

import pyarrow as pa


def row(record: type, **given: Any):
    """A row of `record`; a column that is not given is null where it may be, else empty or 0."""
    fields = dataclasses.fields(record)
    unknown = set(given) - {f.name for f in fields}
    assert not unknown, f"{record.__name__} has no column {sorted(unknown)}"
    return record(**{f.name: given.get(f.name, _plain(f.metadata)) for f in fields})


def _plain(column: dict) -> Any:
    kind = column["arrow"]
    if column["null"]:
        return None
    if pa.types.is_map(kind):
        return {}
    if pa.types.is_list(kind):
        return []
    if pa.types.is_string(kind):
        return ""
    return 0.0 if pa.types.is_floating(kind) else 0
