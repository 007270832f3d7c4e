"""Columns that a data file lacks, and files without rows."""

from collections.abc import Iterator
from typing import Any

from ouroboros.pipeline.check.data_sample import Sample
from ouroboros.pipeline.check.sources import FEATURE, KEPT
from ouroboros.pipeline.store.errors import nearest


def file_problems(source: dict[str, Any], drawn: Sample) -> list[str]:
    """Lists the files of one source that are empty or lack a column, one line each."""
    return [*_empty_files(source, drawn), *_absent_columns(source, drawn)]


def _empty_files(source: dict[str, Any], drawn: Sample) -> Iterator[str]:
    for part in drawn.parts:
        if not part.total:
            yield f"{source['key']}: {part.path} holds no rows; take it out."


def _absent_columns(source: dict[str, Any], drawn: Sample) -> Iterator[str]:
    """Yields a line for each column that a file lacks; one line in total where several files lack it."""
    parts = [part for part in drawn.parts if part.total]
    for setting, column in source["columns"].items():
        paired = source.get("paired", ())
        lacking = [part for part in parts if column not in part.columns
                   and not (setting in source["optional"] and set(paired) <= set(part.columns))]
        if not lacking:
            continue
        named = {"prompt_key": source["prompt_setting"]}.get(
            setting, "response_key" if paired and setting == "solution_key" else setting)
        every, first = len(lacking) == len(parts), lacking[0]
        taken = ("Give the parameter that takes it a default, or a value or ${column:NAME} in reward_fn_args or "
                 "workflow_args.") if setting.startswith(KEPT) else ""
        line = (f"{source['key']}: {source['path'] if every else first.path} has no column '{column}'; found "
                f"{', '.join(first.columns[:20]) or 'none'}.{nearest(column, first.columns)}")
        more = f" {len(lacking)} of its {len(parts)} files lack it." if len(lacking) > 1 and not every else ""
        place = "data_selector.feature_keys of the set" if setting.startswith(FEATURE) else (
            f"{source['format_key']}.{named}")
        yield line + (f" {taken or f'Set {place}.'}" if every else
                      f"{more} Write it as the other files have it, or take it out.")
