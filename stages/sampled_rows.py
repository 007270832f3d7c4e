"""Findings on sampled rows of a data file that need no tokenizer: absent columns, rows that teach nothing.

source: in the format of pipeline/check/samples.py.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ouroboros.operators.formats import MEDIA, text_of
from ouroboros.operators.turns import Unusable, as_turns
from ouroboros.pipeline.check.reading import Row, Sample
from ouroboros.pipeline.check.sources import FEATURE, KEPT, PAIR, RATE
from ouroboros.pipeline.store.errors import nearest
from ouroboros.pipeline.store.harbor import UNSUPPORTED

SHOWN = 160  # characters of a prompt in a message
REPEATED = 0.1  # share of sampled rows that equal others, above which they are reported
CONSTANT, FEW = 0.3, 20  # share of rows with one answer above which it is reported, and rows below which it is not


def unusable(source: dict[str, Any], drawn: Sample) -> list[str]:
    """A line for each empty file and each column that files lack; without any, for pairs that are never complete, solve
    rates that are none and Harbor tasks that cannot run here, unless these are skipped."""
    empty = [f"{source['key']}: {part.path} holds no rows; take it out." for part in drawn.parts if not part.total]
    return [*empty, *_absent_columns(source, drawn)] or [
        *_without_pairs(source, drawn.rows), *_no_rates(source, drawn.rows),
        *([] if source.get("skips") else _unsupported(source, drawn.rows))]


def warnings(source: dict[str, Any], rows: list[Row]) -> list[str]:
    """A line about pairs of identical responses, one about rows that equal others, one about an answer that many tasks
    share, one about skipped Harbor tasks, one about columns of media, and one about a split that a file has not."""
    return [*_identical_pairs(source, rows), *_identical_rows(source, rows), *_one_answer(source, rows),
            *(_unsupported(source, rows) if source.get("skips") else []), *_media(source, rows), *_no_split(source)]


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


def _media(source: dict[str, Any], rows: list[Row]) -> Iterator[str]:
    read = {json.loads(source["form"])["image_key"] if source["form"] else None, *source["columns"].values()}
    for kind, name in ((kind, name) for kind, names in MEDIA.items() for name in names):
        if name not in read and (shown := sum(bool(row.get(name)) for row in rows)):
            yield (f"{source['key']}: {shown} of {len(rows)} sampled rows have a value in the column '{name}', which "
                   "the model does not see: " + (f"{source['format_key']}.image_key={name} shows it."
                                                 if kind == "image" else "prompts are text and images alone."))


def _no_split(source: dict[str, Any]) -> Iterator[str]:
    path = Path(source["path"])
    if source.get("split", "train") not in ("train", "test") and path.is_file():
        yield (f"{source['format_key'].removesuffix('format')}split={source['split']}: {path} is a file and is read "
               "whole; splits are of directories.")


def _unsupported(source: dict[str, Any], rows: list[Row]) -> Iterator[str]:
    if found := [row for row in rows if row.get(UNSUPPORTED)]:
        yield (f"{source['key']}: {len(found)} of {len(rows)} sampled Harbor tasks cannot run here. The first: "
               f"{json.loads(found[0]['answer'])['directory']}: {found[0][UNSUPPORTED]}. "
               + ("Such tasks are left out." if source.get("skips") else
                  f"{source['format_key']}.unsupported=skip leaves such tasks out."))


def _responses(source: dict[str, Any], rows: list[Row]) -> tuple[list[str], list[list[Any]]]:
    """The columns of a pair's responses, and their values in each row."""
    columns = [source["columns"][key] for key in PAIR if key in source["columns"]]
    return columns, [[value_at(row, column) for column in columns] for row in rows]


def _without_pairs(source: dict[str, Any], rows: list[Row]) -> Iterator[str]:
    columns, found = _responses(source, rows)
    if columns and all(None in responses for responses in found):
        yield (f"{source['key']}: none of {len(rows)} sampled rows of {source['path']} is a pair: in each of them "
               f"{' or '.join(columns)} is absent or null. To train on pairs, needed both in a row.")


def _no_rates(source: dict[str, Any], rows: list[Row]) -> Iterator[str]:
    for column in (column for setting, column in source["columns"].items() if setting.startswith(RATE)):
        found = [value for row in rows if type(value := value_at(row, column)) in (int, float)]
        if beyond := [value for value in found if not 0 <= value <= 1]:
            yield (f"{source['key']}: {len(beyond)} of {len(rows)} sampled rows have no solve rate under '{column}' "
                   f"(data_selector.feature_keys), such as {beyond[0]:g}; the selector needs numbers from 0 to 1.")


def _identical_pairs(source: dict[str, Any], rows: list[Row]) -> Iterator[str]:
    columns, found = _responses(source, rows)
    pairs = [responses for responses in found if len(columns) == len(PAIR) and None not in responses]
    same = sum(chosen == rejected for chosen, rejected in pairs)
    if same:
        yield (f"{source['key']}: in {same} of {len(pairs)} sampled pairs ({same / len(pairs):.0%}) of "
               f"{source['path']} {' and '.join(columns)} are the same response, so nothing is learned from them. "
               "Take such rows out.")


def _identical_rows(source: dict[str, Any], rows: list[Row]) -> Iterator[str]:
    columns = [column for setting, column in source["columns"].items() if setting not in source["optional"]]
    images = json.loads(source["form"] or "{}").get("image_key")
    shown = [tuple(text_of(value_at(row, column)) for column in [*columns, *filter(None, [images])]) for row in rows]
    found, whole = set(shown), [values for values in shown if "null" not in values]
    if len(found) > 1 and (again := len(whole) - len(set(whole))) > REPEATED * len(rows):
        yield (f"{source['key']}: {again} of {len(rows)} sampled rows of {source['path']} have the "
               f"{' and '.join(columns)} of another row, and count several times. Take them out, if that is not meant.")
    if len(rows) > 1 and len(found) == 1 and "null" not in min(found):
        yield (f"{source['key']}: all {len(rows)} sampled rows of {source['path']} have the same "
               f"{' and '.join(columns)}: {' and '.join(min(found))[:SHOWN]!r}. Needed different ones: look at the "
               f"file, or at {source['format_key']}.")


def _one_answer(source: dict[str, Any], rows: list[Row]) -> Iterator[str]:
    """RFT finds an answer that is often right before it finds a skill (docs/evidence.md)."""
    column = source["columns"].get("response_key") if source.get("purpose") == "task" else None
    found = Counter(text for row in rows if column and (text := text_of(value_at(row, column))) != "null")
    answer, count = max(found.items(), key=lambda pair: pair[1], default=("", 0))
    if len(found) > 1 and len(rows) >= FEW and count > CONSTANT * len(rows):
        yield (f"{source['key']}: {count} of {len(rows)} sampled rows of {source['path']} have the {column} "
               f"{answer[:SHOWN]!r}: a policy that always gives it solves {count / len(rows):.0%}, and may learn no "
               "more. Balance the answers, or read the scores with that in mind.")


def value_at(row: Row, column: str) -> Any:
    """The value of a row's (dotted) column; None when it has none."""
    value: Any = row
    for part in [column] if column in row else column.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def prompt_of(source: dict[str, Any], row: Row) -> Any:
    """The value of a row's prompt; of messages, or their JSON text, the turns that the stage `tasks` reads."""
    value = value_at(row, source["columns"]["prompt_key"])
    if source["form"] is not None and json.loads(source["form"])["prompt_type"] == "messages":
        with suppress(Unusable):
            return as_turns(value)
    return value


def is_conversation(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(turn, dict) and "role" in turn for turn in value)


def asked(prompt: Any, every_turn: bool) -> Any:
    """Returns the turns of a demonstration before its response, the last turn of the assistant; with every_turn before
    the first one that follows a user's. Other prompts stay as they are."""
    roles = [turn["role"] for turn in prompt] if is_conversation(prompt) else []
    if roles[-2:] != ["user", "assistant"]:
        return prompt
    pairs = [i for i in range(1, len(roles)) if roles[i - 1 : i + 1] == ["user", "assistant"]]
    return prompt[: pairs[0 if every_turn else -1]]


def is_text(value: Any) -> bool:
    """Whether a prompt can be stored: it is not binary, nan, an infinity or blank, and is valid Unicode."""
    if isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value)):
        return False
    try:
        return bool(text_of(value).strip().encode())
    except UnicodeEncodeError:
        return False


def usual(lengths: list[int]) -> int:
    """The length that at most a twentieth of the rows exceed."""
    return sorted(lengths)[-1 - len(lengths) // 20] if lengths else 0


def range_of(what: str, lengths: list[int], most: int) -> str:
    """`prompts of 3 to 40 tokens (limit 24): 12% over`."""
    if not lengths:
        return f"no {what}"
    over = sum(length > most for length in lengths) / len(lengths)
    return f"{what} of {min(lengths)} to {max(lengths)} tokens (limit {most}): {over:.0%} over"
