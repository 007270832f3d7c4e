"""Infers the meaning of a data file's columns from names and sampled rows. Ambiguity is an error."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from pipeline.check.data_sample import Row
from pipeline.store.errors import DataError, nearest

PROMPTS = ("question", "prompt", "problem", "query", "instruction", "input")  # column names, the likeliest first
ANSWERS = ("ground_truth", "final_answer", "expected_answer", "answer", "response", "completion", "output", "solution",
           "target", "label")
SOLUTIONS = ("solution", "reasoning", "rationale", "explanation", "response", "completion")  # in addition to answers
TEXTS = ("text", "content", "document")
# what accuracy_reward compares as a number, which is wrong for digits such as 0112
GRADED = re.compile(r"####\s*\S|\\boxed\{|^\s*[$]?[-+]?(?!0\d)[\d,]*\.?\d+(/\d+)?%?\s*$")
SHORT = 4  # words: a longer solution beside an answer is a demonstration
ANSWER, LONGEST = 6, 16  # words of half of the answers, and of the longest: more are texts to imitate, not to compare
SPEAKERS = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
            "function_call": "assistant", "observation": "tool", "tool": "tool"}
TOOLS = "tools"  # the column that a format reads definitions of tools from by default
PAIR, ALPACA = {"chosen", "rejected"}, {"instruction", "input", "output"}
Table = dict[str, list]  # column, nested ones dotted -> its non-null values


@dataclass
class Guess:
    """kind: rft, sft, dpo or cpt. format: settings of the set's format. notes: conclusions and their evidence.

    reward: its function (rft). demonstrated: the column whose length is the response length. warmup: the column
    of solutions for an sft stage before rft. convert: rewrites a row as
    messages, where stages cannot read the file directly.
    """

    kind: str
    format: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    reward: str | None = None
    demonstrated: str = ""
    warmup: str = ""
    convert: Callable[[Row], Row] | None = None


def guess(rows: list[Row], prompt_key: str | None = None, response_key: str | None = None) -> Guess:
    """Infers the purpose of a file's rows. The keys are columns that the user names. Raises DataError, with all
    columns, if names and values are ambiguous."""
    table = _table(rows)
    for option, key in (("--prompt-key", prompt_key), ("--response-key", response_key)):
        if key is not None and key not in table:
            raise _unclear(table, f"{option} {key}: no row has it.{nearest(key, table)}")
    if response_key is None and set(table) >= PAIR:
        found = _pairs(table, prompt_key or _named(PROMPTS, table) or "chosen")
    elif prompt_key is None and response_key is None and (spoken := _written_otherwise(rows, table)):
        return spoken
    else:
        chats = [name for name, values in table.items() if _turns(values, "role") and name != TOOLS]
        prompt = prompt_key or (chats[0] if len(chats) == 1 else _named(PROMPTS, table))
        found = _of_columns(table, prompt, response_key or _named(ANSWERS, table, but=prompt))
    if TOOLS in table and found.format.get("prompt_type") == "messages":
        found.notes.append(f"{TOOLS}: definitions for the chat template")
    used = {str(column).split(".")[0] for column in (*found.format.values(), *(PAIR if found.kind == "dpo" else ()),
                                               found.warmup, *([TOOLS] * ("prompt_type" in found.format)))}
    if unused := [name for name in dict.fromkeys(column.split(".")[0] for column in table) if name not in used]:
        found.notes.append(f"not used: {', '.join(unused)}")
    return found


def _pairs(table: Table, prompt: str) -> Guess:
    chat = _turns(table[prompt], "role")
    if prompt == "chosen" and not chat:
        raise _unclear(table, "chosen and rejected are pairs, but which column is the prompt?")
    columns = _messages(prompt) if chat else {"prompt_type": "plaintext", "prompt_key": prompt}
    return Guess("dpo", columns, [f"pairs of responses: chosen, rejected; prompt: {prompt}"], demonstrated="chosen")


def _written_otherwise(rows: list[Row], table: Table) -> Guess | None:
    """Detects demonstrations in a layout that no stage reads."""
    talk = next((name for name, values in table.items() if _turns(values, "from", "value")), None)
    if talk is None and not set(table) >= ALPACA:
        return None
    if talk and (unknown := {turn["from"] for turns in table[talk] for turn in turns} - set(SPEAKERS)):
        raise DataError(f"{talk} has turns from {', '.join(map(str, unknown))}; needed one of {', '.join(SPEAKERS)}.")
    what = f"{talk} of from and value" if talk else "instruction, input and output"
    return Guess("sft", _messages("messages"), [f"demonstrations: {what}, rewritten as messages in data/train.jsonl"],
                 convert=(lambda row: _of_talk(row, talk)) if talk else _of_alpaca)


def _of_columns(table: Table, prompt: str | None, answer: str | None) -> Guess:
    """Infers the purpose from the prompt and, if present, the answer column."""
    if prompt is None:
        text = _named(TEXTS, table)
        if text is None or answer is not None:
            raise _unclear(table, "which column is the prompt, and which the answer?")
        return Guess("cpt", {"prompt_key": text, "response_key": None}, [f"plain text, without answers: {text}"])
    chat = _turns(table[prompt], "role")
    answered = [turns[-1]["role"] == "assistant" for turns in table[prompt]] if chat else [False]
    if any(answered) and not all(answered):
        raise _unclear(table, f"some conversations of {prompt} end with the assistant, others do not: keep one kind.")
    if all(answered):
        return Guess("sft", _messages(prompt), [f"demonstrations: the last turns of {prompt}, the assistant's"])
    if answer is None and not chat and len(table) > 1:
        raise _unclear(table, f"{prompt} is the prompt; which column is the answer? If none is, name {prompt} twice.")
    return _answered(table, prompt, answer or prompt, _messages(prompt) if chat else {"prompt_key": prompt})


def _answered(table: Table, prompt: str, answer: str, columns: dict[str, Any]) -> Guess:
    """Handles prompts whose answers are graded, compared or imitated, or judged by the user's function alone."""
    columns, texts = columns | {"response_key": answer}, [str(value) for value in table[answer]]
    if answer == prompt:
        what = "conversations" if "prompt_type" in columns else "prompts"
        return Guess("rft", columns, [f"{what} without answers: {prompt}; the reward is yours to write in reward.py"],
                     "reward:score")
    graded = all(map(GRADED.search, texts))
    counts = [len(text.split()) for text in texts]
    if not graded and (median(counts) > ANSWER or max(counts) > LONGEST):
        return Guess("sft", columns, [f"demonstrations: {answer} is a text to imitate (neither a number nor an answer "
                                      f"behind ####); prompt: {prompt}"], demonstrated=answer)
    columns |= {"solution_key": None} if "solution" in table else {}  # otherwise its rows would be demonstrations
    reward = "accuracy_reward, for numbers and formulas" if graded else "reward.py, which compares words"
    notes = [f"tasks: prompt {prompt}, answer {answer}", f"reward: {reward}"]
    worked = next((name for name in SOLUTIONS if name in table and name not in (prompt, answer)
                   and max(len(str(value).split()) for value in table[name]) > SHORT), "")
    if worked:
        notes.append(f"demonstrations: {worked}, for a warmup (stage sft) before rft")
    return Guess("rft", columns, notes, "accuracy_reward" if graded else "reward:score", worked or answer, worked)


# ------------------------------------------------------------------------------------------------- columns and values


def _table(rows: list[Row]) -> Table:
    found: Table = {}
    for row in rows:
        for name, value in row.items():
            inner = _table([value]) if isinstance(value, dict) else {}
            for column, values in {f"{name}.{key}": held for key, held in inner.items()}.items() or [(name, [value])]:
                found.setdefault(column, []).extend(one for one in values if one is not None)
    return {column: values for column, values in found.items() if values}


def _named(names: tuple[str, ...], table: Table, but: str | None = None) -> str | None:
    """Returns the column with the likeliest name; for a struct of that name its value, if it has only one."""
    there = [column.split(".") for column in table if column != but]
    for name in names:
        own, inner = [c for c in there if c[-1] == name], [c for c in there if name in c[:-1]]
        if own or len(inner) == 1:
            return ".".join((own or inner)[0])
    return None


def _turns(values: list, *keys: str) -> bool:
    """Returns whether all values are conversations whose turns have these keys."""
    return all(isinstance(value, list) and value and all(isinstance(turn, dict) and set(keys) <= set(turn)
                                                         for turn in value) for value in values)


def _messages(column: str) -> dict[str, Any]:
    return {"prompt_type": "messages", "prompt_key": column}


def _of_talk(row: Row, talk: str) -> Row:
    """A row of ShareGPT's form: its column of turns, and those of a system message and of tools beside it."""
    turns = [*([{"from": "system", "value": row["system"]}] if row.get("system") else []), *row[talk]]
    return {"messages": [_of_speaker(turn["from"], turn["value"]) for turn in turns],
            **({TOOLS: row[TOOLS]} if row.get(TOOLS) else {})}


def _of_speaker(speaker: str, value: Any) -> Row:
    """A turn; what function_call says is one call, or a list of them, as JSON."""
    if speaker != "function_call":
        return {"role": SPEAKERS[speaker], "content": value}
    calls = value
    with suppress(TypeError, ValueError):  # what is no JSON is reported where the row is read
        calls = json.loads(value)
    return {"role": "assistant", "content": None, "tool_calls": [calls] if isinstance(calls, dict) else calls}


def _of_alpaca(row: Row) -> Row:
    asked = "\n\n".join(filter(None, (row["instruction"], row.get("input"))))
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": row["output"]}]}


def _unclear(table: Table, why: str) -> DataError:
    shown = [f"  {name}: {' '.join(str(values[0]).split())}"[:100] for name, values in table.items()]
    return DataError("\n".join([why, "Columns, each with a value:", *shown,
                                "Name them: --prompt-key COLUMN --response-key COLUMN"]))
