"""Infers the meaning of a data file's columns from names and sampled rows: what is so in nearly all rows counts.

Rows that are otherwise are named in a note. Ambiguity is an error.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from statistics import median
from typing import Any

from ouroboros.commands.init.rewriting import (
    TOOLS,
    choice_rows,
    is_accepted,
    is_image,
    of_alpaca,
    of_talk,
    with_accepted,
    with_images,
    with_truth,
)
from ouroboros.operators.formats import ABSENT, MEDIA, TESTS, as_text, look_up
from ouroboros.operators.reward import unmatched
from ouroboros.operators.turns import ROLES, SPEAKERS, Unusable
from ouroboros.pipeline.check.reading import Row
from ouroboros.pipeline.settings.config import Buffer
from ouroboros.pipeline.store.errors import DataError, nearest

PROMPTS = ("question", "prompt", "problem", "query", "instruction", "input")  # column names, the likeliest first
ANSWERS = ("ground_truth", "final_answer", "expected_answer", "answer", "response", "completion", "output", "solution",
           "target", "label")
SOLUTIONS = ("solution", "reasoning", "rationale", "explanation", "response", "completion")  # in addition to answers
TEXTS = ("text", "content", "document")
PROGRAMS = ("canonical_solution", "code", "solution", "completion")
TESTING = re.compile(r"\bassert\b|def check\(|[\"']inputs[\"']:")
CHOICES, ASKED = ("choices", "options", "endings"), (*PROMPTS, "ctx", "sentence")
CHOSEN = ("answer_index", "answer_idx", "answerKey", "answer_key", "correct_answer", "correct", "gold", *ANSWERS)
# what accuracy_reward compares as a number, which is wrong for digits such as 0112
GRADED = re.compile(r"####\s*\S|\\boxed\{|^\s*[$]?[-+]?(?!0\d)[\d,]*\.?\d+(/\d+)?%?\s*$")
SHORT = 4  # words: a longer solution next to an answer is a demonstration
ANSWER, LONGEST = 6, 16  # words of half of the answers, and of the longest: more are texts to imitate, not to compare
PAIRS = (("chosen", "rejected"), ("preferred", "rejected"), ("accepted", "rejected"), ("preferred", "dispreferred"),
         ("good", "bad"), ("better", "worse"), ("winner", "loser"))  # words in the names of a pair's columns
CONTEXTS, OUTPUTS = ("input", "context"), ("output", "response")  # next to `instruction`
ALLOWED = Buffer.model_fields["max_rejected_ratio"].default  # share of the rows that may be otherwise
WORDS = "reward.py, which compares words"
TASKS = "rft"  # a kind of Guess
SHOWN = 40  # characters of a value in a note
Table = dict[str, list]  # column, nested ones dotted -> its non-null values


@dataclass
class Guess:
    """kind: rft, sft, dpo or cpt. format: settings of the set's format. notes: conclusions and their evidence.

    reward: its function (rft). demonstrated: the column whose length is the response length. warmup: the column
    of solutions for an sft stage before rft. convert: rewrites a row where stages cannot read the file directly, and
    raises an error for one that is to be left out. is_choice: whether answers are letters of choices. is_list: whether
    an answer is a list of those that count. reasons: whether a reply may work out its answer first, so that the answers
    do not tell its length. used: columns that `convert` reads.
    """

    kind: str
    format: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    reward: str | None = None
    demonstrated: str = ""
    warmup: str = ""
    convert: Callable[[Row], Row] | None = None
    is_choice: bool = False
    is_list: bool = False
    reasons: bool = False
    used: set[str] = field(default_factory=set)


@dataclass
class Sampled:
    """Sampled rows. table: their columns. named: names rows by their positions, for messages."""

    rows: Sequence[Row]
    table: Table
    named: Callable[[Sequence[int]], str]

    def odd(self, column: str, fits: Callable[[Any], bool]) -> list[int]:
        """Returns the positions of the rows whose value, if they have one, is otherwise."""
        found = [look_up(row, column) for row in self.rows]
        return [at for at, value in enumerate(found) if value not in (None, ABSENT) and not fits(value)]

    def mostly(self, column: str, fits: Callable[[Any], bool]) -> bool:
        return len(self.odd(column, fits)) <= ALLOWED * len(self.table[column])


def _by_position(positions: Sequence[int]) -> str:
    return f"rows {', '.join(str(at + 1) for at in positions[:5])}"


def guess(rows: Sequence[Row], prompt_key: str | None = None, response_key: str | None = None,
          named: Callable[[Sequence[int]], str] = _by_position, chosen_key: str | None = None,
          rejected_key: str | None = None) -> Guess:
    """Infers the purpose of a file's rows. The keys are columns that the user names. Raises DataError, with all
    columns, if names and values are ambiguous."""
    table = _table(rows)
    _require(table, prompt_key=prompt_key, response_key=response_key, chosen_key=chosen_key, rejected_key=rejected_key)
    found = _guess(Sampled(rows, table, named), prompt_key, response_key, chosen_key, rejected_key)
    if (images := _images(rows)) and found.kind != "cpt":
        found.format["image_key"] = images
        found.notes.append(f"images: {images}")
        found.convert = found.convert and partial(with_images, images, found.convert)
    if TOOLS in table and found.format.get("prompt_type") == "messages":
        found.notes.append(f"{TOOLS}: definitions for the chat template")
    used = {str(column).split(".")[0] for column in (*found.format.values(), found.warmup, *found.used,
                                                     *([TOOLS] * ("prompt_type" in found.format)))}
    found.notes += _unused(rows, used)
    return found


def _images(rows: Sequence[Row]) -> str | None:
    """Returns the column of images, of several the one with the usual name."""
    given = {name: [row[name] for row in rows if row.get(name) is not None] for name in dict.fromkeys(chain(*rows))}
    found = [name for name, values in given.items()
             if values and sum(map(is_image, values)) >= (1 - ALLOWED) * len(values)]
    return next((name for name in found if name.lower() in MEDIA["image"]), found[0] if found else None)


def _guess(drawn: Sampled, prompt_key: str | None, response_key: str | None, chosen_key: str | None,
           rejected_key: str | None) -> Guess:
    """Infers the purpose from texts."""
    rows, table = drawn.rows, drawn.table
    pair = [] if response_key else _pair(table, (chosen_key, rejected_key))
    if pair:
        return _pairs(drawn, prompt_key or _named(PROMPTS, table) or pair[0], *pair)
    if response_key is None and (other := _programs(drawn, prompt_key) or (prompt_key is None and (
            _choices(drawn) or _written_otherwise(drawn)))):
        return other
    prompt = prompt_key or _prompt(drawn)
    answer = response_key or _named(ANSWERS, table, but=prompt, rows=len(rows))
    return _of_columns(drawn, prompt, answer)


def judged(rows: Sequence[Row], prompt_key: str | None = None, response_key: str | None = None) -> Guess:
    """Infers the prompt of tasks whose reward is the user's function, which takes columns by name, and the answer if
    there is one. Raises DataError, with all columns, where none is named as a prompt."""
    table = _table(rows)
    drawn = Sampled(rows, table, _by_position)
    _require(table, prompt_key=prompt_key, response_key=response_key)
    if (prompt := prompt_key or _prompt(drawn)) is None:
        raise _unclear(table, f"which column is the prompt? None is called {', '.join(PROMPTS)}.")
    answer = response_key or _named(ANSWERS, table, but=prompt, rows=len(rows)) or prompt
    columns = _messages(prompt) if drawn.mostly(prompt, _has_roles) else {"prompt_key": prompt}
    columns |= {"response_key": answer} | ({"solution_key": None} if "solution" in table else {})
    said = f"prompt {prompt}, " + (f"answer {answer}" if answer != prompt else "no answer")
    return Guess(TASKS, columns, [f"tasks: {said}"], "reward", demonstrated=answer,
                 reasons=answer == prompt or drawn.mostly(answer, lambda value: bool(GRADED.search(_text(value)))))


def _require(table: Table, **keys: str | None) -> None:
    """Raises DataError for a column that no row has. keys: as the user named them."""
    for name, key in keys.items():
        if key is not None and key not in table:
            raise _unclear(table, f"--{name.replace('_', '-')} {key}: no row has it.{nearest(key, table)}")


def _prompt(drawn: Sampled) -> str | None:
    """Returns the only column of conversations, else the one whose name is the likeliest of a prompt."""
    chats = [name for name in drawn.table if drawn.mostly(name, _has_roles) and name != TOOLS]
    return chats[0] if len(chats) == 1 else _named(PROMPTS, drawn.table, rows=len(drawn.rows))


def _unused(rows: Sequence[Row], used: set[str]) -> list[str]:
    names = [name for name in dict.fromkeys(one.split(".")[0] for row in rows for one in row) if name not in used]
    return [f"not used: {', '.join(names)}"] if names else []


def _pair(table: Table, given: tuple[str | None, str | None]) -> list[str]:
    """Returns the columns of the preferred and of the other response, as named or guessed; [] without a pair."""
    able = sorted((name for name, values in table.items() if isinstance(values[0], str | list)), key=len)
    for words in PAIRS:
        found = [key or next((name for name in able if word in re.findall("[a-z]+", name.lower())), None)
                 for key, word in zip(given, words, strict=True)]
        if None not in found:
            return found
    if any(given):
        raise _unclear(table, "which column is the other response of the pair?")
    return []


def _pairs(drawn: Sampled, prompt: str, chosen: str, rejected: str) -> Guess:
    chat = drawn.mostly(prompt, _has_roles)
    if prompt == chosen and not chat:
        raise _unclear(drawn.table, f"{chosen} and {rejected} are pairs, but which column is the prompt? If both hold "
                       "the whole dialogue as a text, as hh-rlhf does, write them as lists of messages with roles.")
    columns = _messages(prompt) if chat else {"prompt_type": "plaintext", "prompt_key": prompt}
    columns |= {"chosen_key": chosen, "rejected_key": rejected}
    return Guess("dpo", columns, [f"pairs of responses: {chosen}, {rejected}; prompt: {prompt}"], demonstrated=chosen)


def _programs(drawn: Sampled, prompt_key: str | None) -> Guess | None:
    """Detects programs to write: prompts with tests that code_reward runs."""
    def held(name: str) -> int:
        return sum(bool(TESTING.search(str(row.get(name)))) for row in drawn.rows)

    tests = next((name for name in TESTS if held(name) >= (1 - ALLOWED) * len(drawn.rows)), None)
    prompt = tests and (prompt_key or _named((*PROMPTS, *TEXTS), drawn.table, but=tests))
    if not prompt:
        return None
    answer = next((name for name in PROGRAMS if name in drawn.table), tests)
    columns = {"prompt_key": prompt, "response_key": answer} | (
        {"solution_key": None} if "solution" in drawn.table else {})  # its rows would be demonstrations
    notes = [f"programs: prompt {prompt}, tests {tests}; the reward runs them in a sandbox (docs/programs.md)"]
    return Guess(TASKS, columns, notes, "code_reward", answer)


def _choices(drawn: Sampled) -> Guess | None:
    """Detects multiple choice, whose prompt needs the choices."""
    table = drawn.table
    listed = next((name for name in CHOICES if name in table or f"{name}.text" in table), None)
    prompt, answer = _named(ASKED, table), _named(CHOSEN, table)
    if None in (listed, prompt, answer) or not (found := choice_rows(drawn.rows, prompt, listed, answer, ALLOWED)):
        return None
    how, write = found
    notes = [f"multiple choice: {prompt} and {listed} as lettered lines, rewritten in data/train.jsonl",
             f"answers: {answer} names the right choice by {how}; the reward compares letters (accuracy_reward)"]
    return Guess(TASKS, {"prompt_key": "question", "response_key": "answer"}, notes, "accuracy_reward", "answer",
                 convert=write, is_choice=True, reasons=True, used={prompt, listed, answer})


def _written_otherwise(drawn: Sampled) -> Guess | None:
    """Detects demonstrations in a layout that no stage reads."""
    table = drawn.table
    talk = next((name for name in table if drawn.mostly(name, partial(_turns, keys=("from", "value")))), None)
    context, output = (next((name for name in names if name in table), "") for names in (CONTEXTS, OUTPUTS))
    if talk is None and not ("instruction" in table and context and output):
        return None
    if talk:
        _refuse_speakers(drawn, talk)
    if talk and "system" not in table:
        return Guess("sft", _messages(talk), [f"demonstrations: the last turns of {talk}, those from gpt"])
    what = f"{talk} of from and value" if talk else f"instruction, {context} and {output}"
    used = {talk, "system", TOOLS} if talk else {"instruction", context, output}
    return Guess("sft", _messages("messages"), [f"demonstrations: {what}, rewritten as messages in data/train.jsonl"],
                 used=used,
                 convert=partial(of_talk, talk) if talk else partial(of_alpaca, context, output))


def _refuse_speakers(drawn: Sampled, talk: str) -> None:
    """Raises DataError where more than a few conversations have turns of unknown speakers."""
    def unknown(turns: list) -> set:
        return {str(turn.get("from")) for turn in turns if isinstance(turn, dict)} - {*SPEAKERS, *ROLES}

    odd = drawn.odd(talk, lambda turns: not (isinstance(turns, list) and unknown(turns)))
    if len(odd) > ALLOWED * len(drawn.rows):
        found = sorted(set().union(*(unknown(drawn.rows[at][talk]) for at in odd)))
        raise DataError(f"{talk} has turns from {', '.join(found)} in {len(odd)} of {len(drawn.rows)} sampled rows "
                        f"({drawn.named(odd)}); needed one of {', '.join([*SPEAKERS, *ROLES])}.")


def _of_columns(drawn: Sampled, prompt: str | None, answer: str | None) -> Guess:
    """Infers the purpose from the prompt and, if present, the answer column."""
    table = drawn.table
    if prompt is None:
        text = _named(TEXTS, table)
        if text is None or answer is not None:
            raise _unclear(table, "which column is the prompt, and which the answer?")
        return Guess("cpt", {"prompt_key": text, "response_key": None}, [f"plain text, without answers: {text}"])
    if drawn.mostly(prompt, _has_roles):
        others = drawn.odd(prompt, lambda turns: not _has_roles(turns) or turns[-1]["role"] == "assistant")
        count = len(table[prompt])
        if ALLOWED * count < len(others) < (1 - ALLOWED) * count:
            raise _unclear(table, f"some conversations of {prompt} end with the assistant, {len(others)} of {count} "
                           f"sampled ones do not ({drawn.named(others)}): keep one kind.")
        if len(others) <= ALLOWED * count:
            several = any(_has_roles(turns) and [turn["role"] for turn in turns].count("assistant") > 1
                          for turns in table[prompt])
            more = ("; earlier turns may hold what the user corrected later. For every turn of the assistant: "
                    "format.enable_concatenated_multi_turn: true")
            return Guess("sft", _messages(prompt), [f"demonstrations: the last turns of {prompt}, the assistant's"
                                                    + more * several])
        columns, ours = _messages(prompt), {prompt, TOOLS}
    else:
        columns, ours = {"prompt_key": prompt}, {prompt}
    if answer is None and {name.split(".")[0] for name in table} - ours:
        raise _unclear(table, f"{prompt} is the prompt; which column is the answer? If none is, name {prompt} twice.")
    return _answered(drawn, prompt, answer or prompt, columns)


def _answered(drawn: Sampled, prompt: str, answer: str, columns: dict[str, Any]) -> Guess:
    """Handles prompts whose answers are graded, compared or imitated, or judged by the user's function alone."""
    table, columns = drawn.table, columns | {"response_key": answer}
    if answer == prompt:
        what = "conversations" if "prompt_type" in columns else "prompts"
        return Guess(TASKS, columns, [f"{what} without answers: {prompt}; the reward is yours to write in reward.py"],
                     "reward:score", reasons=True)
    if answer != "label" and "label" in table and all(isinstance(value, bool) for value in table["label"]):
        raise _unclear(table, f"label says which texts of {answer} are good; all of them would teach the bad ones too. "
                       "Keep the rows whose label is true, or write pairs (chosen, rejected).")
    tasks = columns | ({"solution_key": None} if "solution" in table else {})  # its rows would be demonstrations
    if drawn.mostly(answer, is_accepted):
        write = partial(with_accepted, answer) if drawn.odd(answer, is_accepted) else None
        said = [f"tasks: prompt {prompt}, answers {answer}, each of which counts", f"reward: {WORDS}"]
        return Guess(TASKS, tasks, said, "reward:score", convert=write, is_list=True)
    odd = drawn.odd(answer, lambda value: not _text(value) or bool(GRADED.search(_text(value))))
    texts = [text for text in map(_text, table[answer]) if text]
    graded = len(odd) <= ALLOWED * len(texts)
    counts = sorted(len(text.split()) for text in texts)
    usual = counts[:max(len(counts) - int(ALLOWED * len(counts)), 1)]
    if drawn.mostly(answer, _has_roles) or (not graded and texts and (median(usual) > ANSWER or usual[-1] > LONGEST)):
        return Guess("sft", columns, [f"demonstrations: {answer} is a text to imitate (neither a number nor an answer "
                                      f"behind ####); prompt: {prompt}"], demonstrated=answer)
    reward = "accuracy_reward, for numbers and formulas" if graded else WORDS
    notes = [f"tasks: prompt {prompt}, answer {answer}", f"reward: {reward}"]
    if graded and odd:
        notes.append(f"{len(odd)} of {len(drawn.rows)} sampled answers are neither ({drawn.named(odd)}), such as "
                     f"{_text(look_up(drawn.rows[odd[0]], answer))[:SHOWN]!r}: they are compared as words")
    worked = next((name for name in SOLUTIONS if name in table and name not in (prompt, answer)
                   and max(len(str(value).split()) for value in table[name]) > SHORT), "")
    if worked:
        notes.append(f"demonstrations: {worked}, for a warmup (stage sft) before rft")
    useless = drawn.odd(answer, lambda value: bool(_text(value)) and not (graded and unmatched(_text(value))))
    return Guess(TASKS, tasks, notes, "accuracy_reward" if graded else "reward:score", worked or answer, worked,
                 partial(with_truth, prompt, answer, graded) if useless else None, reasons=graded)


# ------------------------------------------------------------------------------------------------- columns and values


def _table(rows: Sequence[Row]) -> Table:
    found: Table = {}
    for row in rows:
        for name, value in row.items():
            inner = _table([value]) if isinstance(value, dict) else {}
            for column, values in {f"{name}.{key}": held for key, held in inner.items()}.items() or [(name, [value])]:
                found.setdefault(column, []).extend(one for one in values if one is not None)
    return {column: values for column, values in found.items() if values}


def _named(names: tuple[str, ...], table: Table, but: str | None = None, rows: int = 0) -> str | None:
    """Returns the column with the likeliest name; for a struct of that name its value, if it has only one.

    rows: their number, where columns that nearly all of them have come first.
    """
    full = {column: values for column, values in table.items() if len(values) >= (1 - ALLOWED) * rows}
    for within in (full, table):
        there = [column.split(".") for column in within if column != but]
        for name in names:
            own = [c for c in there if c[-1].lower() == name.lower()]
            inner = [c for c in there if name in c[:-1]]
            if own or len(inner) == 1:
                return ".".join((own or inner)[0])
    return None


def _text(value: Any) -> str:
    """The text of an answer as training reads it, without blanks around it; empty for one that it does not read."""
    try:
        return (as_text(value) or "").strip()
    except Unusable:
        return ""


def _turns(value: Any, keys: Sequence[str]) -> bool:
    """Returns whether a value is a conversation whose turns have these keys."""
    return isinstance(value, list) and bool(value) and all(isinstance(turn, dict) and set(keys) <= set(turn)
                                                           for turn in value)


_has_roles = partial(_turns, keys=("role",))


def _messages(column: str) -> dict[str, Any]:
    return {"prompt_type": "messages", "prompt_key": column}


def _unclear(table: Table, why: str) -> DataError:
    if held := [name for name, values in table.items() if isinstance(values[0], list) and isinstance(values[0][0], dict)
                and len(table) == 1]:
        return DataError(f"the rows are in a list below the key '{held[0]}'; needed that list alone, or a row a line.")
    shown = [f"  {name}: {' '.join(str(values[0]).split())}"[:100] for name, values in table.items()]
    return DataError("\n".join([why, "Columns, each with a value:", *shown,
                                "Name them: --prompt-key COLUMN --response-key COLUMN; of pairs --prompt-key COLUMN "
                                "--chosen-key COLUMN --rejected-key COLUMN; in Python prompt_key='COLUMN' and so on"]))
