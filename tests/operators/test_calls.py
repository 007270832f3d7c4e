"""Calls in replies; how they are compared with a truth, tests/tasks/test_calls.py compares with the package's own."""

import json

import pytest

from ouroboros.operators.calls import calls_in, solves

F = ("f", {"a": 1})
TRUTH = {"functions": [{"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}},
                       {"name": "g", "parameters": {"properties": {"s": {"type": "string"}}}}],
         "calls": [{"f": {"a": [1, 2]}}, {"g": {"s": ["New York", ""]}}]}


@pytest.mark.parametrize(("text", "calls"), [
    ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', [F]),
    ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call> <tool_call>[{"name": "g"}]', [F, ("g", {})]),
    ('[{"name": "f", "parameters": {"a": 1}}]', [F]),
    ('```json\n{"name": "f", "arguments": {"a": 1}}\n```', [F]),
    ("[f(a=1), m.g(s='x', b=[1, (2,)])]", [F, ("m.g", {"s": "x", "b": [1, (2,)]})]),
    ("[]", []), ("f(1)", None), ("f(a=g())", None), ("f(**{})", None), ("I call f.", None), ("", None),
    ("<tool_call>f</tool_call>", None), ('{"a": 1}', None), ("7", None), ("(" * 5000, None), ("[" * 5000, None)])
def test_calls_are_json_or_python(text, calls):
    assert calls_in(text) == calls


@pytest.mark.parametrize(("calls", "solved"), [
    ([F, ("g", {"s": "new-york"})], True), ([("g", {}), ("f", {"a": 2})], True), ([F], False), ([F, F], False),
    ([("f", {"a": 1.0}), ("g", {})], False), ([("f", {}), ("g", {})], False), ([F, ("g", {"t": 1})], False),
    ([F, ("g", {}), ("g", {})], False)])
def test_each_call_takes_one_that_is_wanted(calls, solved):
    assert solves(calls, json.dumps(TRUTH)) is solved
