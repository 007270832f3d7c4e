"""Converts records of data files to raw tasks by a column mapping, the settings section `format`.

An unusable record becomes a row with its `problem`; only faults of a whole file are errors. A prompt is stored as its
last turn (`question`, which curation reads) and the turns before it (`context`), as texts. Where these do not say all
(tools, calls, thoughts, turns of tools), `messages` has the whole conversation, which is then what is rendered.
"""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ouroboros.operators.pictures import placed, stored, taken
from ouroboros.operators.turns import ASKS, Turn, Unusable, as_tools, as_turns, is_empty, is_plain, said, without_nulls
from ouroboros.pipeline.settings.arguments.answers import REWARDS, WORKFLOWS
from ouroboros.pipeline.store.errors import DataError, nearest
from ouroboros.pipeline.store.named_images import directory_of
from ouroboros.pipeline.store.pictures import Kept
from ouroboros.pipeline.store.records import RawTask

MEDIA = {"image": ("image", "images"), "video": ("video", "videos"), "audio": ("audio", "audios")}  # kind: columns
OF_SOME_ROWS = ("system_prompt_key", "workflow_key", "reward_fn_key")  # keys that a record may lack
TESTS = ("test", "tests", "test_list", "input_output")  # columns: the first that a row has is its tests (code_reward)
ABSENT = object()  # returned by `look_up` for a missing key


def look_up(record: dict, key: str | None) -> Any:
    """The value under a key, which may be a path into structs (`extra_info.answer`); ABSENT if missing."""
    if key is None:
        return ABSENT
    if key in record:
        return record[key]
    head, dot, rest = key.partition(".")
    return look_up(record[head], rest) if dot and isinstance(record.get(head), dict) else ABSENT


def as_text(value: Any) -> str | None:
    """`text_of`, null and ABSENT as null. Raises Unusable for bytes and numbers that are not finite."""
    if value is None or value is ABSENT:
        return None
    if isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value)):
        raise Unusable(f"{str(value)[:60]} where text is needed")
    return text_of(value)


def text_of(value: Any) -> str:
    """Text unchanged; a value that JSON lacks (a decimal, a date, a time) as Python writes it; any other as JSON."""
    if value is None or isinstance(value, bool | int | float | list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def read_records(records: Iterable[dict], columns, purpose: str, file: str, first: int, kept: Kept | None = None
                 ) -> Iterator[RawTask]:
    """Raw tasks of one file, numbered from `first`. columns: a `format`. purpose: a key of READ. kept: where images
    are stored; None: they are looked at alone.

    Raises DataError, naming the existing keys, when a required key is missing from all records of the file.
    """
    wanted = needed_keys(columns, purpose)
    talks = {columns.messages_key or columns.prompt_key, columns.tools_key, columns.chosen_key, columns.rejected_key}
    seen: set[str] = set()
    known: dict[str, None] = {}
    kept, directory = kept or Kept(None), directory_of(file)
    for record in records:
        if not file.endswith(".jsonl"):
            record = {key: without_nulls(value) if key in talks and isinstance(value, list) else value
                      for key, value in record.items()}
        paired = purpose == "demonstration" and all(
            look_up(record, key) is not ABSENT for key in (columns.chosen_key, columns.rejected_key))
        missing = [key for key in wanted
                   if look_up(record, key) is ABSENT and not (paired and key == columns.response_key)]
        seen |= set(wanted) - set(missing)
        if missing:
            known |= dict.fromkeys(column_names(record))
        yield _raw_task(first, record, columns, purpose, missing, kept, directory)
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
    return needed | {key: name for name in OF_SOME_ROWS if (key := getattr(columns, name, None)) is not None}


def _raw_task(row: int, record: dict, columns, purpose: str, missing: list[str], kept: Kept, directory: Path
              ) -> RawTask:
    try:
        lacking = [key for key in missing if key not in [getattr(columns, name, None) for name in OF_SOME_ROWS]]
        if lacking:
            raise Unusable(f"the record has no {' and no '.join(lacking)}")
        made = READ[purpose](row, record, columns)
        _refuse_media(record, made)
        made.pictures = [stored(one, kept.keep, directory) for one in made.pictures or ()] or None
        _refuse_surrogates(made)
    except Unusable as problem:
        return RawTask(row, None, None, None, problem=str(problem))
    return made


def _refuse_media(record: dict, made: RawTask) -> None:
    """Raises Unusable for a record whose media training would leave out."""
    texts = [made.question, *(turn["content"] for turn in made.context)]
    for kind, names in MEDIA.items():
        given = [name for name in names if not is_empty(record.get(name))]
        if given and not (made.pictures and kind == "image") and any(f"<{kind}>" in (text or "") for text in texts):
            raise Unusable(f"the column '{given[0]}' stands for <{kind}> in the prompt; needed " + (
                f"format.image_key={given[0]}" if kind == "image" else "text and images alone"))


def _refuse_surrogates(made: RawTask) -> None:
    texts = [made.question, made.answer, made.solution, made.chosen, made.rejected, made.messages]
    for text in [*texts, *(turn["content"] for turn in made.context)]:
        try:
            (text or "").encode()
        except UnicodeEncodeError as error:  # a lone surrogate cannot be stored
            raise Unusable(f"text that is no valid Unicode ({error})") from error


def _prompt(record: dict, columns) -> list[Turn]:
    """All turns of a record's prompt; for a plain prompt at most system and user, none when it is null."""
    turns = _turns(record, columns)
    images = look_up(record, columns.image_key)
    return turns if images is ABSENT or is_empty(images) or not turns else placed(turns, images)


def _turns(record: dict, columns) -> list[Turn]:
    if columns.prompt_type == "messages":
        return as_turns(look_up(record, columns.messages_key or columns.prompt_key))
    question = look_up(record, columns.prompt_key)
    if isinstance(question, list):
        raise Unusable("the prompt is a list of messages; set format.prompt_type=messages"
                       if question and isinstance(question[0], dict) else "the prompt is a list; needed a text")
    system = as_text(look_up(record, columns.system_prompt_key)) or columns.system_prompt
    turns = [{"role": "system", "content": system}] if system else []
    return turns if question is None else [*turns, {"role": "user", "content": as_text(question)}]


def _tools(record: dict, columns) -> list[dict]:
    """The definitions of tools in a record, apart from its prompt."""
    value = look_up(record, columns.tools_key)
    return [] if value is ABSENT else as_tools(value)


def _read_task(row: int, record: dict, columns) -> RawTask:
    turns, texts = _prompt(record, columns), [
        as_text(look_up(record, key)) for key in (columns.response_key, columns.solution_key)]
    if turns and turns[-1]["role"] == "user" and not said(turns[-1]).strip():
        raise Unusable("the prompt is empty; needed a text that asks for something")
    made = _made(row, columns, turns, texts, _tools(record, columns), _pair(record, columns, turns))
    made.choices = _choices(record, columns)
    made.margin = _margin(record, columns.margin_key) if made.chosen is not None else None
    return made


def _choices(record: dict, columns) -> str | None:
    """What a record, or its format, says of its attempts, as JSON. Raises Unusable for a name that is none of ours."""
    rewards = look_up(record, columns.reward_fn_key)
    named = [_named(look_up(record, columns.workflow_key), WORKFLOWS, "workflow"),
             [_named(one, REWARDS, "reward function") for one in (rewards if isinstance(rewards, list) else [rewards])],
             columns.reply_prefix]
    named[1] = [name for name in dict.fromkeys(named[1]) if name]
    made = {key: value for key, value in zip(("workflow", "reward_fn", "reply_prefix"), named, strict=True) if value}
    return json.dumps(made, ensure_ascii=False) if made else None


def _named(name: Any, known: dict, what: str) -> str | None:
    """The name of one of our functions; None where a record names none."""
    if name is ABSENT or is_empty(name):
        return None
    if name not in list(known):
        raise Unusable(f"names the {what} {name!r}; needed one of {', '.join(known)} (one of your own is named by a "
                       "taskset)")
    return name


def _read_demonstration(row: int, record: dict, columns) -> RawTask:
    """A demonstration, or a pair where the record has both responses."""
    turns, tools = _prompt(record, columns), _tools(record, columns)
    truth = as_text(look_up(record, columns.truth_key)) if columns.truth_key else None
    given = [_as_response(look_up(record, key)) for key in (columns.chosen_key, columns.rejected_key)]
    if all(given):
        asked = _asked(turns, given)
        pair = _pair(record, columns, asked)
        if pair[0] == pair[1]:
            raise Unusable("chosen and rejected are the same response, of which nothing is learned")
        _refuse_silence(pair[0])
        made = _made(row, columns, asked, [_text(pair[0]) if truth is None else truth, None], tools, pair)
        made.margin = _margin(record, columns.margin_key)
        return made
    response = _response(record, columns, turns)
    _refuse_silence(response)
    turns = turns[:-1] if turns and turns[-1]["role"] == "assistant" else turns
    answer = said(response[-1]) if truth is None else truth
    return _made(row, columns, turns, [answer, said(response[-1])], tools, (), response)


def _margin(record: dict, key: str | None) -> float | None:
    """By how much the chosen response of a pair is better; None where no column says it."""
    if key is None:
        return None
    found = look_up(record, key)
    if type(found) not in (int, float) or not 0 <= found < math.inf:
        shown = "nothing" if found is ABSENT else repr(found)[:60]
        raise Unusable(f"{shown} under '{key}' (format.margin_key); needed a number, at least 0")
    return float(found)


def _response(record: dict, columns, turns: list[Turn]) -> list[Turn]:
    """What a record shows after its prompt: the last turn of the conversation, else the response column."""
    if columns.prompt_type == "messages" and turns[-1]["role"] == "assistant":
        if len(turns) == 1:
            raise Unusable("the conversation has no turn of user")
        return turns[-1:]
    value = look_up(record, columns.response_key)
    spoken = value if isinstance(value, list) else [value]
    is_spoken = bool(spoken) and all(isinstance(one, dict) and {"role", "content"} <= set(one) for one in spoken)
    response = _as_response(value if is_spoken else as_text(value))
    if response is None:
        raise Unusable(f"no response: no '{columns.response_key}' (format.response_key), no pair under chosen_key "
                       "and rejected_key" + ("" if columns.prompt_type == "plaintext" else
                                             ", and the messages do not end with one"))
    return _after(response, turns)


def _as_response(value: Any) -> list[Turn] | None:
    """A response as turns: of messages all, of a text one by the assistant; None where there is none."""
    if isinstance(value, dict):
        value = [value]
    if isinstance(value, list):
        return as_turns(value)
    text = as_text(value)
    return None if text is None else [{"role": "assistant", "content": text}]


def _pair(record: dict, columns, prompt: list[Turn]) -> tuple[list[Turn], ...]:
    """What both responses of a pair add to the prompt; nothing when the record lacks one."""
    given = [_as_response(look_up(record, key)) for key in (columns.chosen_key, columns.rejected_key)]
    return tuple(_after(one, prompt) for one in given) if all(given) else ()


def _asked(turns: list[Turn], given: list[list[Turn]]) -> list[Turn]:
    """The prompt of a pair whose conversation includes a response: what the conversations share before one."""
    whole = [one for one in given if one[0] == turns[0]] if turns and turns[-1]["role"] == "assistant" else []
    if not whole:
        return turns[:-1] if len(turns) > 1 and turns[-1:] == given[0] else turns
    for one in whole:
        differs = (place for place, (a, b) in enumerate(zip(turns, one, strict=False)) if a != b)
        turns = turns[:next(differs, min(len(turns), len(one)))]
    while turns and turns[-1]["role"] == "assistant":
        turns = turns[:-1]
    if not turns:
        raise Unusable("the conversation has no turn of user")
    return turns


def _after(turns: list[Turn], prompt: list[Turn]) -> list[Turn]:
    """The turns that follow the prompt, which they may repeat (its system message may be that of the format)."""
    asked = [turn for turn in prompt if turn["role"] != "system"]
    lead = next((one for one in (prompt, asked) if one and turns[:len(one)] == one), [])
    rest = turns[len(lead):]
    if turns[-1]["role"] != "assistant" or not rest:
        raise Unusable(f"a response ends with a turn of {turns[-1]['role']}; needed one of assistant")
    if rest[0]["role"] != "assistant":
        raise Unusable(f"a response begins with a turn of {rest[0]['role']} that is not the prompt's; needed the "
                       "prompt's turns, or one of assistant")
    return rest


def _made(row: int, columns, turns: list[Turn], texts: list[str | None], tools: list[dict],
          pair: tuple[list[Turn], ...] = (), response: list[Turn] | None = None) -> RawTask:
    """The row of a prompt, with texts (answer, solution). response: what a demonstration adds to it."""
    is_null = columns.prompt_type == "plaintext" and (not turns or turns[-1]["role"] != "user")
    if not is_null:
        _refuse_ending(turns)
    turns, images = taken(turns)
    whole = {"messages": [*turns, *(response or [])], **({"tools": tools} if tools else {}),
             **dict(zip(("chosen", "rejected"), pair, strict=False))}
    is_simple = (not tools and all(map(is_plain, whole["messages"])) and len(response or [0]) == 1
                 and all(len(one) == 1 and is_plain(one[0]) for one in pair))
    context = [{"role": turn["role"], "content": said(turn)} for turn in (turns if is_null else turns[:-1])]
    return RawTask(row, None if is_null else said(turns[-1]), *texts, context, *map(_text, pair or (None, None)),
                   messages=None if is_simple else json.dumps(whole, ensure_ascii=False, default=str),
                   pictures=images)


def _refuse_silence(response: list[Turn]) -> None:
    if is_plain(response[-1]) and not said(response[-1]).strip():
        raise Unusable("the response is empty, and would teach to answer with nothing")


def _refuse_ending(turns: list[Turn]) -> None:
    if turns[-1]["role"] not in ASKS:
        raise Unusable(f"the prompt ends with a turn of {turns[-1]['role']}; needed one of {' or '.join(ASKS)}")
    if all(turn["role"] != "user" for turn in turns):
        raise Unusable("the conversation has no turn of user")


def _text(turns: list[Turn] | None) -> str | None:
    return None if turns is None else "\n".join(map(said, turns))


def _read_text(row: int, record: dict, columns) -> RawTask:
    text = as_text(look_up(record, columns.prompt_key))
    if not text:
        raise Unusable(f"no text under '{columns.prompt_key}' (format.prompt_key)")
    return RawTask(row, text, "", None)


READ = {"task": _read_task, "demonstration": _read_demonstration, "text": _read_text}
