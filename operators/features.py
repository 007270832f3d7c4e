"""Numbers of a task by which selectors order it: columns of its record that `data_selector.feature_keys` names."""

import math
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from dataclasses import replace
from typing import Any

from ouroboros.operators.formats import ABSENT, column_names, look_up
from ouroboros.pipeline.store.errors import DataError, nearest
from ouroboros.pipeline.store.records import RawTask


def noting(records: Iterable[dict], keys: Sequence[str], into: MutableSequence[dict[str, Any]]) -> Iterator[dict]:
    """The records, one after the other; what each has under the keys is appended to `into`.

    Raises DataError, with the columns that are there, for a key that none has.
    """
    seen: set[str] = set()
    known: dict[str, None] = {}
    for record in records:
        found = {key: look_up(record, key) for key in keys}
        seen |= {key for key, value in found.items() if value is not ABSENT}
        if len(seen) < len(keys):
            known |= dict.fromkeys(column_names(record))
        into.append(found)
        yield record
    for key in keys:
        if key not in seen and known:
            raise DataError(f"data_selector.feature_keys: no record has a column '{key}'; found {', '.join(known)}."
                            f"{nearest(key, known)}")


def featured(row: RawTask, found: dict[str, Any]) -> RawTask:
    """The row with its features; one without a number under a key cannot be used."""
    if row.problem is not None:
        return row
    for key, value in found.items():
        if isinstance(value, str) or not _is_finite(value):
            words = "absent" if value is ABSENT else repr(value)[:60]
            return replace(row, problem=f"{key} (data_selector.feature_keys) is {words}; needed a number")
    return replace(row, features=[(key, float(value)) for key, value in found.items()])


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, OverflowError):
        return False
