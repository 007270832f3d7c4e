"""Rows in layouts that no stage reads, written as `messages` or as question and answer: Alpaca, choices, a system
message next to turns.

A function raises KeyError, TypeError or ValueError for a row that it cannot write; such rows are left out, and counted.
"""

import base64
import string
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ouroboros.operators.formats import ABSENT, as_text, look_up
from ouroboros.operators.reward import unmatched
from ouroboros.pipeline.store.named_images import is_image_name
from ouroboros.pipeline.store.pictures import Broken, opened

Row = dict[str, Any]
TOOLS = "tools"  # the column that a format reads definitions of tools from by default
LETTERS = string.ascii_uppercase


def of_talk(talk: str, row: Row) -> Row:
    """A row of ShareGPT's form with a system message next to its turns."""
    system = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    return {"messages": [*system, *row[talk]], **({TOOLS: row[TOOLS]} if row.get(TOOLS) else {})}


def of_alpaca(context: str, output: str, row: Row) -> Row:
    """context, output: the columns next to `instruction`."""
    asked = "\n\n".join(filter(None, (row["instruction"], row.get(context))))
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": row[output]}]}


def with_images(column: str, convert: Callable[[Row], Row], row: Row) -> Row:
    """A row that is written otherwise, and its images."""
    return {**convert(row), column: row.get(column)}


def is_image(value: Any) -> bool:
    """Whether a value is an image, or a list of images, in a form that stages read."""
    several = value if isinstance(value, list) else [value]
    return bool(several) and all(map(_is_one, several))


def _is_one(value: Any) -> bool:
    if isinstance(value, dict) and value.keys() <= {"bytes", "path"}:  # as Audio and Video of datasets are, too
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        with suppress(Broken):
            return bool(opened(value))
    return is_image_name(value) or (isinstance(value, str) and value.startswith("data:image/"))


def file_names(value: Any) -> list[str]:
    """Names of files among the images of a row."""
    several = [one.get("path") if isinstance(one, dict) and not one.get("bytes") else one
               for one in (value if isinstance(value, list) else [value])]
    return [one for one in several if is_image_name(one)]


def as_json(value: Any) -> Any:
    """A value that JSON lacks: of bytes their base64."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def with_truth(prompt: str, answer: str, is_graded: bool, row: Row) -> Row:
    """A row whose answer can be compared. is_graded: by accuracy_reward."""
    truth = as_text(look_up(row, answer))
    if truth is not None and not truth.strip():
        raise ValueError(f"its answer (column {answer}) is empty")
    if truth is not None and is_graded and (why := unmatched(truth)):
        raise ValueError(why)
    return row


def is_accepted(value: Any) -> bool:
    """Whether a value is a list of answers, each of which counts: texts or numbers, not all of them blank."""
    return isinstance(value, list) and all(isinstance(one, str | int | float) for one in value) and any(
        str(one).strip() for one in value)


def with_accepted(answer: str, row: Row) -> Row:
    """A row whose answers can be compared."""
    if not is_accepted(look_up(row, answer)):
        raise ValueError(f"its answer (column {answer}) is no list of texts or numbers, or all of them are blank")
    return row


# ------------------------------------------------------------------------------------------------------ multiple choice


def choice_rows(rows: Sequence[Row], prompt: str, choices: str, answer: str, allowed: float
                ) -> tuple[str, Callable[[Row], Row]] | None:
    """How the answers of multiple-choice rows name the right one, and what writes a row; None where they do not.

    allowed: the share of rows that may be otherwise.
    """
    for how, position in WAYS.items():
        write = partial(_of_choices, prompt, choices, answer, position)
        if sum(not _writes(write, row) for row in rows) <= allowed * len(rows):
            return how, write
    return None


def _writes(write: Callable[[Row], Row], row: Row) -> bool:
    try:
        return bool(write(row))
    except (KeyError, TypeError, ValueError):
        return False


def _of_choices(prompt: str, choices: str, answer: str, position: Callable[[Any, list[str], list[str]], int], row: Row
                ) -> Row:
    """The question with its choices on lettered lines, and the letter of the right one."""
    given, asked, truth = row[choices], row[prompt], look_up(row, answer)
    texts = given["text"] if isinstance(given, dict) else given
    labels = given["label"] if isinstance(given, dict) else []
    if not isinstance(texts, list) or not 2 <= len(texts) <= len(LETTERS) or truth in (None, ABSENT):
        raise ValueError(f"it lacks an answer, or choices ({choices})")
    if not isinstance(asked, str) or not asked.strip():
        raise ValueError(f"its question (column {prompt}) is no text")
    texts = [as_text(text) or "" for text in texts]
    at = position(truth, texts, labels)
    if not 0 <= at < len(texts):
        raise ValueError(f"its answer {truth!r} is none of its {len(texts)} choices")
    lines = "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, texts, strict=False))
    return {"question": f"{asked}\n\n{lines}", "answer": LETTERS[at]}


def _by_letter(truth: Any, texts: list[str], labels: list[str]) -> int:
    letter = truth.strip().strip("().").upper() if isinstance(truth, str) else ""
    return LETTERS.index(letter) if len(letter) == 1 else -1


def _by_number(first: int, truth: Any, texts: list[str], labels: list[str]) -> int:
    if isinstance(truth, bool) or not isinstance(truth, int | str):
        raise TypeError(f"its answer {truth!r} is no number")
    return int(truth) - first


WAYS: dict[str, Callable[[Any, list[str], list[str]], int]] = {
    "its label": lambda truth, texts, labels: labels.index(truth),
    "its text": lambda truth, texts, labels: texts.index(truth),
    "its letter": _by_letter,
    "its number, counted from 0": partial(_by_number, 0),
    "its number, counted from 1": partial(_by_number, 1),
}
