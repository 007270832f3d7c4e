"""Columns of a record other than its prompt and truth, which the functions of its set are given, kept with the task."""

import json
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from dataclasses import replace
from typing import Any

from ouroboros.operators.formats import ABSENT, column_names, look_up
from ouroboros.pipeline.settings.arguments.binding import EVERY, SAID_TO_VERL, TRUTH, required_columns
from ouroboros.pipeline.store.errors import DataError, nearest
from ouroboros.pipeline.store.records import RawTask


def keeping(records: Iterable[dict], asked: Sequence[str], columns, into: MutableSequence[dict[str, Any]]
            ) -> Iterator[dict]:
    """The records, one after the other; what each has of the columns `asked` is appended to `into`.

    columns: a `format`. Raises DataError, with the columns that are there, for one that no record has.
    """
    lacking, known = {*required_columns(asked)}, {}
    for record in records:
        lacking -= {name for name in lacking if look_up(record, name) is not ABSENT}
        if lacking:
            known |= dict.fromkeys(column_names(record))
        into.append(kept_of(record, asked, columns))
        yield record
    for name in sorted(lacking) if known else ():
        raise DataError(f"no record has a column '{name}', which functions of its set take; found {', '.join(known)}."
                        f"{nearest(name, known)} Give the parameter a default, or a value or ${{column:...}} in the "
                        "arguments of the set.")


def kept_of(record: dict, asked: Sequence[str], columns) -> dict[str, Any]:
    """What a record has of the columns asked for: null where it lacks one. EVERY: all but the prompt and bytes; TRUTH:
    the truth where it is no text, but a list or a mapping."""
    prompt = (columns.prompt_key, columns.messages_key)
    made = {name: value for name, value in record.items() if EVERY in asked and name not in prompt and _text(value)}
    for name in asked:
        value = look_up(record, columns.response_key if name == TRUTH else name)
        if isinstance(value, (dict, list)) if name == TRUTH else name != EVERY and not (
                value is ABSENT and name in SAID_TO_VERL):
            made[name] = None if value is ABSENT else value
    return made


def with_columns(row: RawTask, found: dict[str, Any]) -> RawTask:
    """The row with these columns; one whose columns cannot be stored cannot be used."""
    if row.problem is not None or not found:
        return row
    if wrong := next((name for name, value in found.items() if _text(value) is None), None):
        return replace(row, problem=f"the column '{wrong}' holds bytes, or text that is no valid Unicode")
    return replace(row, columns=_text(found))


def _text(value: Any) -> str | None:
    """A value as JSON, what JSON lacks (a date, a decimal) as Python writes it; None where it cannot be stored."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=_written)
        text.encode()
    except (TypeError, UnicodeEncodeError):  # bytes; a lone surrogate
        return None
    return text


def _written(value: Any) -> str:
    if isinstance(value, bytes):
        raise TypeError
    return str(value)
