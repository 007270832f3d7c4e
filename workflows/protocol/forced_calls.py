"""Forced tool calls as JSON: the schema that replies then satisfy, and the calls in such a reply.

A reply is [{"name": ..., "parameters": {...}}, ...], the form of vLLM for tool_choice "required"; one named function
has that form too, with one call. So it does not depend on the tool-call parser of the model.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from ouroboros.pipeline.store.errors import DataError

ANY_OBJECT = {"type": "object"}  # of response_format json_object
NAME = re.compile(r'\s*\}?\s*[\[,]\s*\{\s*"name"\s*:\s*')  # from the call before it
PARAMETERS = re.compile(r'\s*,\s*"parameters"\s*:\s*')
DEFINITIONS = ("$defs", "definitions")


def calls_schema(tools: Sequence[dict], name: str | None = None, several: bool = True) -> dict:
    """The JSON schema of calls of any tool, or of one call of that name. tools: in OpenAI's form.

    Definitions move to the root, which references are relative to. Raises DataError where those of two tools differ.
    """
    shared: dict[str, dict] = {}
    calls = []
    for function in (tool["function"] for tool in tools if name in (None, tool["function"]["name"])):
        parameters = dict(function.get("parameters") or ANY_OBJECT)
        for place in DEFINITIONS:
            own = parameters.pop(place) if isinstance(parameters.get(place), dict) else {}
            for key, one in own.items():
                if shared.setdefault(place, {}).setdefault(key, one) != one:
                    raise DataError(f"two tools define {place}/{key} differently; a forced tool_choice needs one.")
        calls.append({"type": "object", "additionalProperties": False, "required": ["name", "parameters"],
                      "properties": {"name": {"enum": [function["name"]]}, "parameters": parameters}})
    most = {"maxItems": 1} if name or not several else {}
    return {**shared, "type": "array", "items": {"anyOf": calls}, "minItems": 1, **most}


def calls_in(text: str) -> list[tuple[str, str]]:
    """(name, arguments exactly as generated) of the calls in a reply; none if it was cut off."""
    decoder, calls, place = json.JSONDecoder(), [], 0
    try:
        json.loads(text)
        while begin := NAME.match(text, place):
            name, end = decoder.raw_decode(text, begin.end())
            if not (between := PARAMETERS.match(text, end)):
                return []
            _, place = decoder.raw_decode(text, between.end())
            calls.append((name, text[between.end():place]))
    except (ValueError, RecursionError):
        return []
    return calls


def as_text(calls: Sequence[tuple[str, str]]) -> str:
    """The reply that consists of these calls."""
    texts = [f'{{"name": {json.dumps(name)}, "parameters": {arguments}}}' for name, arguments in calls]
    return f"[{', '.join(texts)}]"


def as_fields(text: str | None, tools: Sequence[dict]) -> dict[str, Any]:
    """The fields of a chat request that ask a server for replies of this schema."""
    if text is None:
        return {}
    schema = json.loads(text)
    for several in (True, False) if tools else ():
        if schema == calls_schema(tools, None, several):
            return {"tool_choice": "required", **({} if several else {"parallel_tool_calls": False})}
    for name in (tool["function"]["name"] for tool in tools):
        if schema == calls_schema(tools, name):
            return {"tool_choice": {"type": "function", "function": {"name": name}}}
    if schema == ANY_OBJECT:
        return {"response_format": {"type": "json_object"}}
    return {"response_format": {"type": "json_schema", "json_schema": {
        "name": "reply", "strict": True, "schema": schema}}}
