"""Turns of a conversation in a record, normalised to OpenAI's form: what chat templates are written for.

A turn keeps role, content (text; text parts are joined, and where there are images it is a list of parts) and every
other field that says something, such as tool_calls or reasoning_content: whether the template reads it is found where
there is one. Arguments of calls are JSON text, as OpenAI writes them; the older function_call and the role function
become tool_calls and tool, and ShareGPT's from and value role and content.
"""

import json
from typing import Any

ROLES = ("system", "user", "assistant", "tool")
SPEAKERS = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}  # of ShareGPT
ASKS = ("user", "tool")  # roles that an assistant's turn answers
NOTHING = ("", "null", "[]", "{}")  # texts of a field that says nothing
PLAIN = {"role", "content"}
MARK = "<image>"  # in texts, where an image is
IMAGES = {"image": ("image", "url", "path", "base64"), "image_url": ("image_url",), "input_image": ("image_url",)}

Turn = dict[str, Any]


class Unusable(ValueError):
    """A record cannot become a task; the message says why."""


def is_empty(value: Any) -> bool:
    """Whether a field says nothing, also as JSON text: columnar files give every turn the fields of all."""
    if isinstance(value, dict):
        return all(map(is_empty, value.values()))
    return value is None or value == [] or (isinstance(value, str) and value.strip() in NOTHING)


def without_nulls(value: Any) -> Any:
    """A value without the nulls in its structs, with which columnar files fill fields that a row lacks."""
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def as_turns(value: Any) -> list[Turn]:
    """A conversation, or its JSON text, as turns. Raises Unusable for anything else, or calls that are malformed."""
    if isinstance(value, str):
        value = _parsed(value, f"text where messages are needed: {value[:60]!r}; needed a list of {{role, content}}, "
                               "or format.prompt_type=plaintext")
    if not isinstance(value, list) or not value:
        found = "empty" if value == [] else "null" if value is None else json.dumps(value, default=str)[:60]
        raise Unusable(f"messages are {found}; needed a list of {{role, content}}")
    turns = [_turn(number, turn) for number, turn in enumerate(value, start=1)]
    _answer_calls(turns)
    return turns


def as_tools(value: Any) -> list[dict]:
    """Definitions of tools in OpenAI's form from a list of them, or its JSON text; a bare function is wrapped.

    Raises Unusable for anything else.
    """
    if is_empty(value):
        return []
    if isinstance(value, str):
        value = _parsed(value, f"tools are the text {value[:60]!r}; needed a JSON list")
    if not isinstance(value, list):
        raise Unusable(f"tools are {_json(value)}; needed a list of {{type, function}}")
    return [_tool(number, one) for number, one in enumerate(value, start=1)]


def is_plain(turn: Turn) -> bool:
    """Whether role and content say all: a text of the system, the user or the assistant."""
    return set(turn) == PLAIN and turn["role"] != "tool" and isinstance(turn["content"], str)


def said(turn: Turn) -> str:
    """A turn as one text: its content, or its calls as JSON where it has none."""
    calls, content = turn.get("tool_calls"), turn["content"]
    if not isinstance(content, str):
        return "".join(part.get("text", MARK) for part in content)
    return content or (json.dumps(calls, ensure_ascii=False) if calls else "")


def _parsed(text: str, otherwise: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise Unusable(otherwise) from None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:60]


def _refuse_constant(name: str):
    raise ValueError(f"{name} is no JSON")


def _turn(number: int, turn: Any) -> Turn:
    if isinstance(turn, dict) and "role" not in turn and {"from", "value"} <= set(turn):
        turn = _of_speaker(turn)
    if not isinstance(turn, dict) or "role" not in turn:
        found = f"has {', '.join(map(str, turn))}" if isinstance(turn, dict) else f"is {_json(turn)}"
        raise Unusable(f"turn {number} {found}; needed role and content")
    role = "tool" if turn["role"] == "function" else turn["role"]
    if role not in ROLES:
        raise Unusable(f"turn {number}: role {turn['role']!r}; needed one of {', '.join(ROLES)}")
    more = {str(key): value for key, value in turn.items() if key not in PLAIN and not is_empty(value)}
    if "function_call" in more:
        more.setdefault("tool_calls", [more.pop("function_call")])
    if "tool_calls" in more:
        if role != "assistant":
            raise Unusable(f"turn {number}: tool_calls in a turn of {role}; needed one of assistant")
        more["tool_calls"] = _calls(number, more["tool_calls"])
    content = turn.get("content")
    if role == "assistant" and more and content in (None, []):
        content = ""  # it calls or thinks, without a text
    elif "content" not in turn:
        raise Unusable(f"turn {number} has {', '.join(map(str, turn))}; needed role and content")
    content = _content(number, content)
    if not isinstance(content, str) and role != "user":
        raise Unusable(f"turn {number}: an image in a turn of {role}; needed one of user")
    return {"role": role, "content": content, **more}


def _of_speaker(turn: Turn) -> Turn:
    """A turn of ShareGPT's form: what function_call says is one call, or a list of them, as JSON."""
    speaker, value = turn["from"], turn["value"]
    role = SPEAKERS.get(speaker, speaker) if isinstance(speaker, str) else speaker
    rest = {key: one for key, one in turn.items() if key not in ("from", "value") and not (
        key == "weight" and one == (role == "assistant"))}  # as turns are trained anyway
    if speaker != "function_call":
        return {"role": role, "content": value, **rest}
    calls = _parsed(value, f"a function_call of invalid JSON: {value[:60]!r}") if isinstance(value, str) else value
    return {"role": role, "content": None, **rest, "tool_calls": [calls] if isinstance(calls, dict) else calls}


def _content(number: int, content: Any) -> str | list[dict]:
    """A turn's text; text parts are joined, as chat templates do. With images the parts {type: text, text} and {type:
    image, image}, whose source is None where the part has none. Raises Unusable for parts of other types."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise Unusable(f"turn {number}: content is {_json(content)}; needed text")
    kinds = [part.get("type") if isinstance(part, dict) else _json(part) for part in content]
    texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    if not {"text", *IMAGES}.issuperset(kinds) or len(texts) < kinds.count("text"):
        raise Unusable(f"turn {number}: content has parts {', '.join(map(str, kinds))}; needed text or images")
    if set(kinds) == {"text"}:
        return "".join(texts)
    if any(MARK in text for text in texts):
        raise Unusable(f"turn {number}: {MARK} in the text of a turn with images; needed a part for each image")
    return [{"type": "text", "text": part["text"]} if part["type"] == "text" else
            {"type": "image", "image": _source(part)} for part in content]


def _source(part: dict) -> Any:
    """What an image is read from: bytes, a text, or a struct with one of them; None where the part has none."""
    found = next((part[key] for key in IMAGES[part["type"]] if not is_empty(part.get(key))), None)
    return found.get("url") if isinstance(found, dict) and "url" in found else found


def _calls(number: int, calls: Any) -> list[dict]:
    if isinstance(calls, str):
        calls = _parsed(calls, f"turn {number}: tool_calls are the text {calls[:60]!r}; needed a list of calls")
    if not isinstance(calls, list):
        raise Unusable(f"turn {number}: tool_calls are {_json(calls)}; needed a list of calls")
    return [_call(f"turn {number}: call {place}", call) for place, call in enumerate(calls, start=1)]


def _call(where: str, call: Any) -> dict:
    """A call {id, type, function: {name, arguments}}; a bare {name, arguments} is wrapped."""
    function = call.get("function", call) if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not (isinstance(name, str) and name.strip()):
        raise Unusable(f"{where} names no function; needed {{id, type, function: {{name, arguments}}}}")
    if call.get("type") not in (None, "", "function"):
        raise Unusable(f"{where} is of type {call['type']!r}; needed function")
    own = {"id": call["id"]} if function is not call and not is_empty(call.get("id")) else {}
    return {**own, "type": "function", "function": {"name": name, "arguments": _arguments(where, function)}}


def _arguments(where: str, function: dict) -> str:
    """The arguments of a call as JSON text; what is text already as it is written."""
    given = function.get("arguments")
    if given is None or given == "":
        return "{}"
    needed = f"{where}: arguments are {str(given)[:60]!r}; needed a JSON object"
    found = _parsed(given, needed) if isinstance(given, str) else given
    if not isinstance(found, dict):
        raise Unusable(needed)
    try:
        text = json.dumps(found, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError):  # not JSON, or half a surrogate pair behind an escape
        raise Unusable(needed) from None
    return given if isinstance(given, str) else text


def _tool(number: int, tool: Any) -> dict:
    if isinstance(tool, str):
        tool = _parsed(tool, f"tools: number {number} is the text {tool[:60]!r}; needed {{type, function}}")
    if isinstance(tool, dict) and "function" not in tool and "name" in tool:
        tool = {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not (isinstance(function.get("name"), str) and function["name"].strip()):
        raise Unusable(f"tools: number {number} names no function; needed {{type, function: {{name, parameters}}}}")
    return tool


def _answer_calls(turns: list[Turn]) -> None:
    """Checks that turns of tool answer calls, where calls have ids; gives one without an id that of the only call that
    is not answered. Raises Unusable."""
    waiting: list[str] = []
    for number, turn in enumerate(turns, start=1):
        if turn["role"] == "assistant":
            waiting = [call["id"] for call in turn.get("tool_calls", ()) if "id" in call]
        elif turn["role"] == "tool" and "tool_call_id" in turn:
            if waiting and turn["tool_call_id"] not in waiting:
                raise Unusable(f"turn {number}: tool_call_id {turn['tool_call_id']!r} answers no call; needed one of "
                               f"{', '.join(map(str, waiting))}")
            waiting = [one for one in waiting if one != turn["tool_call_id"]]
        elif turn["role"] == "tool" and waiting:
            if len(waiting) > 1:
                raise Unusable(f"turn {number} has no tool_call_id, and may answer {', '.join(map(str, waiting))}")
            turn["tool_call_id"] = waiting.pop()
