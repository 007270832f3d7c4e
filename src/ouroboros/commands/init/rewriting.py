"""Rows in layouts that no stage reads, written as `messages` or as question and answer: ShareGPT, Alpaca, choices.

A function raises KeyError, TypeError or ValueError for a row that it cannot write; such rows are left out, and counted.
"""

import json
import string
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ouroboros.operators.formats import ABSENT, as_text, look_up
from ouroboros.operators.reward import unmatched

Row = dict[str, Any]
SPEAKERS = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
            "function_call": "assistant", "observation": "tool", "tool": "tool"}
TOOLS = "tools"  # the column that a format reads definitions of tools from by default
LETTERS = string.ascii_uppercase


def of_talk(talk: str, row: Row) -> Row:
    """A row of ShareGPT's form: its column of turns, and those of a system message and of tools next to it."""
    turns = [*([{"from": "system", "value": row["system"]}] if row.get("system") else []), *row[talk]]
    return {"messages": [_of_speaker(turn["from"], turn["value"]) for turn in turns],
            **({TOOLS: row[TOOLS]} if row.get(TOOLS) else {})}


def _of_speaker(speaker: str, value: Any) -> Row:
    """A turn; what function_call says is one call, or a list of them, as JSON."""
    if speaker not in SPEAKERS:
        raise ValueError(f"a turn from {speaker!r}; needed one of {', '.join(SPEAKERS)}")
    if speaker != "function_call":
        return {"role": SPEAKERS[speaker], "content": value}
    calls = value
    with suppress(TypeError, ValueError):  # what is no JSON is reported where the row is read
        calls = json.loads(value)
    return {"role": "assistant", "content": None, "tool_calls": [calls] if isinstance(calls, dict) else calls}


def of_alpaca(context: str, output: str, row: Row) -> Row:
    """context, output: the columns next to `instruction`."""
    asked = "\n\n".join(filter(None, (row["instruction"], row.get(context))))
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": row[output]}]}


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
