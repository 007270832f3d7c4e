"""Function calls in a reply, and whether they are those that a task asks for.

The rules are those of the Berkeley Function-Calling Leaderboard for Python (bfcl_eval 2026.3.23, ast_checker.py), with
the same verdict on every row and on changed answers to it (`make test-tasks`).

A truth is JSON, {"functions": [{name, parameters}], "calls": [{name: {parameter: [allowed values]}}]}, where "" among
the allowed values makes a parameter optional. Texts are compared without case, spaces and , . / - _ * ^.
"""

import ast
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ouroboros.pipeline.store.errors import DataError

KINDS = {"string": str, "integer": int, "float": float, "boolean": bool, "array": list, "tuple": list, "dict": dict,
         "any": str}
MARKED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
LONGEST = 100_000  # characters of a reply

Calls = list[tuple[str, dict[str, Any]]]


def calls_in(text: str) -> Calls | None:
    """The calls of a reply, None where it is none: JSON objects with `name` and `arguments`, each or a list of them
    within <tool_call> tags or alone, or calls of Python with literals as arguments, `[f(a=1), g()]`."""
    text = text.strip()[:LONGEST]
    with suppress(AttributeError, KeyError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError):
        if parts := MARKED.findall(text):
            return [call for part in parts for call in _of_json(json.loads(part))]
        text = re.sub(r"^```\w*\n|\n?```$", "", text)
        with suppress(ValueError):
            return list(_of_json(json.loads(text)))
        return list(_of_python(ast.parse(text.strip(), mode="eval").body))
    return None


def _of_json(found: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for one in found if isinstance(found, list) else [found]:
        given = one.get("arguments", one.get("parameters", {}))
        yield one["name"], json.loads(given) if isinstance(given, str) else dict(given)


def _of_python(node: ast.expr) -> Iterator[tuple[str, dict[str, Any]]]:
    for one in node.elts if isinstance(node, ast.List | ast.Tuple) else [node]:
        if not isinstance(one, ast.Call) or one.args or any(word.arg is None for word in one.keywords):
            raise ValueError("no call with named arguments")
        yield ast.unparse(one.func), {word.arg: ast.literal_eval(word.value) for word in one.keywords}


def solves(calls: Calls, truth: str) -> bool:
    """Whether the calls are those of a truth, in any order. Raises DataError for a malformed truth."""
    try:
        about = json.loads(truth)
        functions = {one["name"]: one["parameters"] for one in about["functions"]}
        wanted = [(name, functions[name], allowed) for one in about["calls"] for name, allowed in one.items()]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"truth {truth[:80]!r} is no functions and calls ({error!r}).") from error
    left = list(calls)
    for name, parameters, allowed in wanted:  # each takes the first that fits, as there
        at = next((at for at, one in enumerate(left) if one[0] == name and _fits(one[1], parameters, allowed)), None)
        if at is None:
            return False
        del left[at]
    return not left


def _fits(given: dict[str, Any], parameters: dict[str, Any], allowed: dict[str, list]) -> bool:
    kinds = parameters["properties"]
    needed = {*parameters.get("required", ()), *(name for name, values in allowed.items() if "" not in values)}
    return needed <= {*given} and all(
        name in kinds and name in allowed and _is_allowed(value, kinds[name], allowed[name])
        for name, value in given.items())


def _is_allowed(value: Any, about: dict[str, Any], allowed: list) -> bool:
    kind, is_list = KINDS[about["type"]], about["type"] in ("array", "tuple")
    if about["type"] == "tuple" and type(value) is tuple:
        value = list(value)
    if about["type"] == "float" and type(value) is int:
        value = float(value)
    inner = KINDS[about["items"]["type"]] if is_list else None
    named = next((type(one) for one in allowed if one != ""), None)  # of another type: a variable stands for the value
    if type(value) is kind and inner and not _holds(value, inner, allowed):
        return False
    if type(value) is not kind or named not in (None, kind):
        return type(value) in (kind, named) and value in allowed
    if kind is dict:
        return any(one != "" and _is_mapping(value, one) for one in allowed)
    if inner is dict:
        return any(len(value) == len(one) and all(map(_is_mapping, value, one)) for one in allowed)
    if kind is str:
        return _plain(value) in [_plain(one) for one in allowed if isinstance(one, str)]
    if kind is list:
        return [_plain(one) for one in value] in [[_plain(one) for one in several] for several in allowed]
    return value in allowed


def _holds(values: list, kind: type, allowed: list) -> bool:
    """Whether all values have a type, or that of the values of one list that is allowed."""
    for several in allowed:
        if not isinstance(several, list):
            return True
        named = next((type(one) for one in several if one != ""), None)
        if all(type(one) is kind or (named is not None and type(one) is named) for one in values):
            return True
    return False


def _is_mapping(value: Any, allowed: dict[str, list]) -> bool:
    """Whether a mapping has the keys of another, each with one of its values."""
    if not isinstance(value, dict):
        return False
    return all(key in allowed and _plain(one) in [_plain(other) for other in allowed[key]] for key, one in value.items()
               ) and all(key in value or "" in others for key, others in allowed.items())


def _plain(value: Any) -> Any:
    """A text as it is compared; any other value unchanged."""
    return re.sub(r"[ ,./\-_*^]", "", value).lower().replace("'", '"') if isinstance(value, str) else value
