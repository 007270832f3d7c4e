"""Converts records of data files to raw tasks by a column mapping, the settings section `format`.

An unusable record becomes a row with its `problem`; only faults of a whole file are errors. A prompt is stored as its
last user turn (`question`, which curation reads) and the turns before it (`context`).
"""

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.store.errors import DataError, nearest
from pipeline.store.records import RawTask

ROLES = ("system", "user", "assistant", "tool")
MEDIA = {"image": ("image", "images"), "video": ("video", "videos"), "audio": ("audio", "audios")}  # kind: columns
TOOLS = "tools"  # a column of definitions, which training does not read
NOTHING = ("", "null", "[]", "{}")  # texts of a field that says nothing
ABSENT = object()  # returned by `look_up` for a missing key


class Unusable(ValueError):
    """A record cannot become a task; the message says why."""


def look_up(record: dict, key: str | None) -> Any:
    """The value under a key, which may be a path into structs (`extra_info.answer`); ABSENT if missing."""
    if key is None:
        return ABSENT
    if key in record:
        return record[key]
    head, dot, rest = key.partition(".")
    return look_up(record[head], rest) if dot and isinstance(record.get(head), dict) else ABSENT


def as_text(value: Any) -> str | None:
    """Text unchanged, null and ABSENT as null, anything else as JSON. Raises Unusable for other values."""
    if value is None or value is ABSENT:
        return None
    if isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value)):
        raise Unusable(f"{str(value)[:60]} where text is needed")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def as_turns(value: Any) -> list[dict[str, str]]:
    """A conversation, or its JSON text, as turns {role, content}. Raises Unusable for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise Unusable(f"text where messages are needed: {value[:60]!r}; needed a list of {{role, content}}, or "
                           "format.prompt_type=plaintext") from None
    if not isinstance(value, list) or not value:
        found = "empty" if value == [] else "null" if value is None else as_text(value)[:60]
        raise Unusable(f"messages are {found}; needed a list of {{role, content}}")
    return [_turn(number, turn) for number, turn in enumerate(value, start=1)]


def _turn(number: int, turn: Any) -> dict[str, str]:
    if not isinstance(turn, dict) or "role" not in turn or "content" not in turn:
        found = ", ".join(map(str, turn)) if isinstance(turn, dict) else type(turn).__name__
        raise Unusable(f"turn {number} has {found}; needed role and content")
    if turn["role"] not in ROLES:
        raise Unusable(f"turn {number}: role {turn['role']!r}; needed one of {', '.join(ROLES)}")
    if lost := [key for key, value in turn.items() if key not in ("role", "content") and not _is_empty(value)]:
        raise Unusable(f"turn {number} has {', '.join(map(str, lost))}, which training would leave out; needed turns "
                       "of role and content alone")
    return {"role": turn["role"], "content": _content(number, turn["content"])}


def _content(number: int, content: Any) -> str:
    """A turn's text; text parts are joined, as chat templates do. Raises Unusable for parts of other types."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise Unusable(f"turn {number}: content is {type(content).__name__}; needed text")
    kinds = [part.get("type") if isinstance(part, dict) else type(part).__name__ for part in content]
    texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    if set(kinds) != {"text"} or len(texts) < len(content):
        raise Unusable(f"turn {number}: content has parts {', '.join(map(str, kinds))}; needed text")
    return "".join(texts)


def _is_empty(value: Any) -> bool:
    """Whether a field says nothing, also as JSON text: columnar files give every turn the fields of all."""
    if isinstance(value, dict):
        return all(map(_is_empty, value.values()))
    return value is None or value == [] or (isinstance(value, str) and value.strip() in NOTHING)


def read_records(records: Iterable[dict], columns, purpose: str, file: str, first: int) -> Iterator[RawTask]:
    """Raw tasks of one file, numbered from `first`. columns: a `format`. purpose: a key of READ.

    Raises DataError, naming the existing keys, when a required key is missing from all records of the file.
    """
    wanted = needed_keys(columns, purpose)
    seen: set[str] = set()
    known: dict[str, None] = {}
    for record in records:
        paired = purpose == "demonstration" and all(
            look_up(record, key) is not ABSENT for key in (columns.chosen_key, columns.rejected_key))
        missing = [key for key in wanted
                   if look_up(record, key) is ABSENT and not (paired and key == columns.response_key)]
        seen |= set(wanted) - set(missing)
        if missing:
            known |= dict.fromkeys(column_names(record))
        yield _raw_task(first, record, columns, purpose, missing)
        first += 1
    for key in wanted:
        if key not in seen and known:
            raise DataError(f"{file} has no column '{key}'; found {', '.join(known)}.{nearest(key, known)} Set "
                            f"format.{wanted[key]} of the set that reads it.")


def column_names(record: dict[str, Any], prefix: str = "") -> list[str]:
    """Keys of a record as a format may name them, with those in structs: `reward_model.ground_truth`."""
    names = []
    for key, value in record.items():
        names.append(f"{prefix}{key}")
        if isinstance(value, dict):
            names += column_names(value, f"{prefix}{key}.")
    return names


def needed_keys(columns, purpose: str) -> dict[str, str]:
    """Required key of a file -> setting of the format that names it.

    Pairs need no response key, and messages may end with one: records without a response are reported row by row.
    """
    prompt = "prompt_key"
    if columns.prompt_type == "messages" and columns.messages_key is not None:
        prompt = "messages_key"
    needed = {getattr(columns, prompt): prompt}
    if purpose == "task" or (columns.prompt_type == "plaintext" and columns.response_key is not None):
        needed[columns.response_key] = "response_key"
    if columns.system_prompt_key is not None:
        needed[columns.system_prompt_key] = "system_prompt_key"
    return needed


def _raw_task(row: int, record: dict, columns, purpose: str, missing: list[str]) -> RawTask:
    try:
        lacking = [key for key in missing if key != columns.system_prompt_key]
        if lacking:
            raise Unusable(f"the record has no {' and no '.join(lacking)}")
        made = READ[purpose](row, record, columns)
        _refuse_lost(record, columns, purpose, made)
        _refuse_surrogates(made)
    except Unusable as problem:
        return RawTask(row, None, None, None, problem=str(problem))
    return made


def _refuse_lost(record: dict, columns, purpose: str, made: RawTask) -> None:
    """Raises Unusable for a record whose media or tool definitions training would leave out."""
    texts = [made.question, *(turn["content"] for turn in made.context)]
    for kind, names in MEDIA.items():
        given = [name for name in names if not _is_empty(record.get(name))]
        if given and any(f"<{kind}>" in (text or "") for text in texts):
            raise Unusable(f"the column '{given[0]}' stands for <{kind}> in the prompt; needed text alone")
    if purpose == "demonstration" and columns.prompt_type == "messages" and not _is_empty(record.get(TOOLS)):
        raise Unusable(f"the column '{TOOLS}' has definitions that the prompt would lack; needed demonstrations "
                       "without tools")


def _refuse_surrogates(made: RawTask) -> None:
    texts = [made.question, made.answer, made.solution, made.chosen, made.rejected]
    for text in [*texts, *(turn["content"] for turn in made.context)]:
        try:
            (text or "").encode()
        except UnicodeEncodeError as error:  # a lone surrogate cannot be stored
            raise Unusable(f"text that is no valid Unicode ({error})") from error


def _prompt(record: dict, columns) -> list[dict[str, str]]:
    """All turns of a record's prompt; for a plain prompt at most system and user, none when it is null."""
    if columns.prompt_type == "messages":
        return as_turns(look_up(record, columns.messages_key or columns.prompt_key))
    question = look_up(record, columns.prompt_key)
    if isinstance(question, list) and question and isinstance(question[0], dict):
        raise Unusable("the prompt is a list of messages; set format.prompt_type=messages")
    system = as_text(look_up(record, columns.system_prompt_key)) or columns.system_prompt
    turns = [{"role": "system", "content": system}] if system else []
    return turns if question is None else [*turns, {"role": "user", "content": as_text(question)}]


def _split(turns: list[dict[str, str]], is_plain: bool) -> tuple[list[dict[str, str]], str | None]:
    """(turns before the question, question): the last turn, by the user; null for an empty plain prompt."""
    if is_plain and (not turns or turns[-1]["role"] != "user"):
        return turns, None
    if turns[-1]["role"] != "user":
        raise Unusable(f"the prompt ends with a turn of {turns[-1]['role']}; needed one of user")
    return turns[:-1], turns[-1]["content"]


def _read_task(row: int, record: dict, columns) -> RawTask:
    context, question = _split(_prompt(record, columns), columns.prompt_type == "plaintext")
    texts = (as_text(look_up(record, key)) for key in (columns.response_key, columns.solution_key))
    return RawTask(row, question, *texts, context, *_pair(record, columns))


def _pair(record: dict, columns) -> tuple[str | None, str | None]:
    """The two responses of a pair; both null when the record lacks one."""
    chosen, rejected = (_response(look_up(record, key)) for key in (columns.chosen_key, columns.rejected_key))
    return (chosen, rejected) if chosen is not None and rejected is not None else (None, None)


def _response(value: Any) -> str | None:
    """A response as text; for messages the last turn, by the assistant."""
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        return as_text(value)
    turn = as_turns(value)[-1]
    if turn["role"] != "assistant":
        raise Unusable(f"a response of the pair ends with a turn of {turn['role']}; needed one of assistant")
    return turn["content"]


def _read_demonstration(row: int, record: dict, columns) -> RawTask:
    """A demonstration, or a pair where the record has both responses."""
    turns, is_plain = _prompt(record, columns), columns.prompt_type == "plaintext"
    chosen, rejected = _pair(record, columns)
    truth = as_text(look_up(record, columns.truth_key)) if columns.truth_key else None
    if chosen is not None:
        if not is_plain and len(turns) > 1 and turns[-1] == {"role": "assistant", "content": chosen}:
            turns = turns[:-1]  # the conversation includes its preferred response
        context, question = _split(turns, is_plain)
        return RawTask(row, question, chosen if truth is None else truth, None, context, chosen, rejected)
    if not is_plain and turns[-1]["role"] == "assistant":
        solution, turns = turns[-1]["content"], turns[:-1]
        if not turns:
            raise Unusable("the conversation has no turn of user")
    else:
        solution = as_text(look_up(record, columns.response_key))
        if solution is None:
            raise Unusable(f"no response: no '{columns.response_key}' (format.response_key), no pair under chosen_key "
                           "and rejected_key" + ("" if is_plain else ", and the messages do not end with one"))
    context, question = _split(turns, is_plain)
    return RawTask(row, question, solution if truth is None else truth, solution, context)


def _read_text(row: int, record: dict, columns) -> RawTask:
    """Plain text without an answer."""
    text = as_text(look_up(record, columns.prompt_key))
    if not text:
        raise Unusable(f"no text under '{columns.prompt_key}' (format.prompt_key)")
    return RawTask(row, text, "", None)


READ = {"task": _read_task, "demonstration": _read_demonstration, "text": _read_text}
