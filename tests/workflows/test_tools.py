"""Tools: their schemas, their processes, and what a tool that misbehaves does to its attempt."""

import json
import os
import tempfile
import time
from pathlib import Path

import pytest

from pipeline.settings.arguments.answers import ToolArguments
from pipeline.store.errors import ConfigError
from tests import toolkit
from tests.workflows.test_isolated import roll
from workflows.attempts import schedule
from workflows.single_turn import load_workflow
from workflows.tools import Tool, Toolset, load_tools

KIT = "tests.toolkit:"


@pytest.fixture
def used():
    """What tools return to an attempt that calls them."""
    def run(asked, *names, workflow="calls", limit=60.0, **more):
        (outcome,) = roll([load_workflow(KIT + workflow, {"tools": [KIT + one for one in names],
                                                          "asked": json.dumps(asked), **more}, limit)],
                          [list(map(ord, path))])
        assert outcome.reason is None
        return json.loads(Path(path).read_text())

    with tempfile.TemporaryDirectory() as short:
        path = f"{short}/found"
        yield run


def test_the_description_of_a_tool_follows_from_its_signature():
    assert Tool(toolkit.add).definition == {"type": "function", "function": {
        "name": "add", "description": "The sum of two numbers.", "parameters": {
            "type": "object", "required": ["left"], "additionalProperties": False, "properties": {
                "left": {"title": "Left", "type": "integer"},
                "right": {"title": "Right", "type": "integer", "default": 1, "description": "the other one"}}}}}
    keyed = Tool(toolkit.append)
    assert list(keyed.definition["function"]["parameters"]["properties"]) == ["path", "line"]
    assert keyed.declaration.idempotent


@pytest.mark.parametrize("workflow", ["calls", "awaits", "generates"])
def test_tools_get_their_arguments_as_declared_and_mistakes_are_texts(used, workflow):
    found = used([["add", {"left": 2}], ["add", '{"left": "2", "right": 5}'], ["add", "{}"], ["add", "2+2"],
                  ["add", {"left": 1, "more": 2}], ["sub", {}], ["waits", {"seconds": 0.01}]], "add", "waits",
                 workflow=workflow)
    assert found[:2] == ["3", "7"]
    assert found[-1] == "waited"
    assert [one.partition(":")[0] for one in found[2:6]] == ["error"] * 4
    assert "left" in found[2]
    assert "there are add, waits" in found[5]


def test_attempts_that_wait_for_a_tool_are_counted(monkeypatch):
    monkeypatch.setattr(schedule, "REPORT_SECONDS", -1)
    with tempfile.TemporaryDirectory() as short:
        asked = '[["waits", {"seconds": 0.2}]]'
        workflow = load_workflow(KIT + "calls", {"tools": [KIT + "waits"], "asked": asked}, 60)
        found: list[schedule.Progress] = []
        roll([workflow] * 2, [list(map(ord, f"{short}/{name}")) for name in "ab"], report=found.append)
    assert max(one.call for one in found) >= 1
    assert found[-1].ended < found[-1].attempts == 2


def test_a_tool_in_every_way_that_is_wrong(used):
    ways = ["raises", "bytes", "prints", "long", "memory", "exits", "leaves", "surrogate", "raises surrogate",
            "forks", "ok"]
    begin = time.monotonic()
    found = dict(zip(ways, used([["misbehaves", {"way": way}] for way in ways], "misbehaves"), strict=True))
    assert found["raises"].startswith("error: KeyError: 'nothing there'")
    assert "returned bytes; needed" in found["bytes"]
    assert found["prints"] == "prints"
    assert len(found["long"]) < 70_000
    assert found["long"].endswith("… (cut: 16777216 characters)")
    assert found["memory"].startswith("error: MemoryError")
    assert "ended with exit code 3, without a result" in found["exits"]
    assert found["leaves"].startswith("error: SystemExit: enough")
    assert found["surrogate"].startswith("error: ValueError: the result has half of a surrogate pair")
    assert found["raises surrogate"].startswith("error: ValueError: \\udfff")
    assert (found["forks"], found["ok"]) == ("forked", "ok")
    assert time.monotonic() - begin < 60


def test_an_attempt_whose_state_is_lost_fails_whatever_its_agent_makes_of_it():
    asked = [["up", {"by": 666}], ["up", {}], ["add", {"left": 2}]]
    with tempfile.TemporaryDirectory() as short:
        workflow = load_workflow(KIT + "forgives", {"tools": [KIT + "add"], "environment_class": KIT + "Counter",
                                                    "asked": json.dumps(asked)}, 60.0)
        (outcome,) = roll([workflow], [list(map(ord, f"{short}/found"))])
        lost, again, added = json.loads(Path(f"{short}/found").read_text())
    assert lost == again
    assert lost.endswith("the state of the environment is lost")
    assert added == "3"
    assert (outcome.status, outcome.reason) == ("workflow_failed", lost.removeprefix("caught "))


def test_a_tool_that_hangs_ends_at_its_limit_with_what_it_started(used, tmp_path):
    file = tmp_path / "pid"
    hung, after = used([["hangs", {"path": str(file)}], ["add", {"left": 1}]], "hangs", "add")
    assert "timed out after 3 s (tool_seconds)" in hung
    assert after == "2"
    status = Path(f"/proc/{file.read_text()}/status")
    assert not status.exists() or "\nState:\tZ" in status.read_text()


def test_tools_see_only_the_variables_that_are_named(used, monkeypatch):
    from workflows.attempts.isolated import host

    names = ["A_TOKEN", "PLAIN_SETTING", "NAMED_KEY", "PATH"]
    for name in names[:3]:
        monkeypatch.setenv(name, "value")
    host.cache_clear()  # the process that forks attempts has the environment of its start
    (found,) = used([["variables", {"names": names}]], "variables", environment=["NAMED_KEY"])
    assert json.loads(found) == {"A_TOKEN": None, "PLAIN_SETTING": None, "NAMED_KEY": "value",
                                 "PATH": os.environ["PATH"]}


@pytest.mark.parametrize(("arguments", "said"), [
    ({}, "name no tools"), ({"tools": ["tests.toolkit:nothing"]}, "cannot be imported"),
    ({"tools": [KIT + "add", KIT + "add"]}, "two tools"), ({"tools": [KIT + "Counter"]}, "no function"),
    ({"environment_class": KIT + "add"}, "no class derived"), ({"tools": [KIT + "generates"]}, "arguments that JSON")])
def test_tools_that_cannot_be_used_are_mistakes(arguments, said):
    with pytest.raises(ConfigError, match=said):
        Tool(lambda *rest: None) if "generates" in str(arguments) else load_tools(Toolset(ToolArguments(**arguments)))


def test_a_workflow_and_its_tools_get_their_own_arguments():
    found = load_workflow(KIT + "calls", {"tools": [KIT + "add"], "turns": 2, "asked": "[]", "tool_seconds": 3.0})
    assert (found.function.keywords, found.tools.settings.tool_seconds) == ({"turns": 2, "asked": "[]"}, 3.0)
    with pytest.raises(ConfigError, match="has no argument 'tool'"):
        load_workflow(KIT + "calls", {"tool": [KIT + "add"], "asked": "[]"})
