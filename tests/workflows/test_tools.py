"""Tools: their schemas, their processes, and what a tool that misbehaves does to its attempt."""

import json
import os
import tempfile
import time
from pathlib import Path

import pytest

from ouroboros.pipeline.job.processes import state
from ouroboros.pipeline.settings.arguments.answers import ToolArguments
from ouroboros.pipeline.store.errors import ConfigError, StageError
from ouroboros.workflows.attempts import schedule
from ouroboros.workflows.protocol.tools import Tool, Toolset, load_tools
from ouroboros.workflows.single_turn import load_workflow
from tests import toolkit
from tests.golden.messages import refuses, wording
from tests.workflows.test_isolated import roll

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
    wording(found[5], "there")


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
    ways = ["raises", "bytes", "prints", "long", "memory", "reserves", "exits", "leaves", "surrogate",
            "raises surrogate", "forks", "ok"]
    begin = time.monotonic()
    found = dict(zip(ways, used([["misbehaves", {"way": way}] for way in ways], "misbehaves"), strict=True))
    wording(found["raises"], "KeyError: 'nothing there'")
    assert "returned bytes; needed" in found["bytes"]
    assert found["prints"] == "prints"
    assert len(found["long"]) < 70_000
    wording(found["long"], "(cut: 16777216 characters)")
    assert found["memory"].startswith("error: MemoryError")
    assert found["reserves"] == str(64 << 30)
    wording(found["exits"], "code 3")
    assert found["leaves"].startswith("error: SystemExit: enough")
    wording(found["surrogate"], "ValueError")
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
    wording(lost, "environment")
    assert added == "3"
    assert (outcome.status, outcome.reason) == ("workflow_failed", lost.removeprefix("caught "))


def test_a_tool_that_hangs_ends_at_its_limit_with_what_it_started(used, tmp_path):
    file = tmp_path / "pid"
    hung, after = used([["hangs", {"path": str(file)}], ["add", {"left": 1}]], "hangs", "add")
    wording(hung, "3 s", "(tool_seconds)")
    assert after == "2"
    status = Path(f"/proc/{file.read_text()}/status")
    assert not status.exists() or "\nState:\tZ" in status.read_text()


def test_tools_see_only_the_variables_that_are_named(used, monkeypatch):
    from ouroboros.workflows.attempts.isolated import host

    names = ["A_TOKEN", "PLAIN_SETTING", "NAMED_KEY", "PATH"]
    for name in names[:3]:
        monkeypatch.setenv(name, "value")
    host.cache_clear()  # the process that forks attempts has the environment of its start
    (found,) = used([["variables", {"names": names}]], "variables", environment=["NAMED_KEY"])
    assert json.loads(found) == {"A_TOKEN": None, "PLAIN_SETTING": None, "NAMED_KEY": "value",
                                 "PATH": os.environ["PATH"]}


def test_no_process_shows_a_tool_the_secrets_that_it_was_started_with(used, monkeypatch):
    from ouroboros.workflows.attempts.isolated import host

    monkeypatch.setenv("DOOR_KEY", "sesame-open-1001")
    host.cache_clear()
    (found,) = used([["shown", {"text": "sesame-open-1001"}]], "shown")
    assert json.loads(found) == []


def test_a_module_of_tools_has_the_variables_that_are_named_and_no_others(used, monkeypatch):
    from ouroboros.workflows.attempts.isolated import host

    monkeypatch.setenv("NEEDED_KEY", "value")
    host.cache_clear()
    needy = {"tools": ["tests.needy_tools:key"], "asked": '[["key", {}]]'}
    with tempfile.TemporaryDirectory() as short:
        prompt = [list(map(ord, f"{short}/found"))]
        with refuses(StageError, "'NEEDED_KEY'", "workflow_args.environment"):
            roll([load_workflow(KIT + "calls", needy, 60.0)], prompt)
        (outcome,) = roll([load_workflow(KIT + "calls", needy | {"environment": ["NEEDED_KEY"]}, 60.0)], prompt)
        assert (outcome.reason, Path(f"{short}/found").read_text()) == (None, '["value"]')


def gone(pids: list[str], seconds: float = 5.0) -> list[str]:
    """Processes that are still there after so long."""
    deadline = time.monotonic() + seconds
    while left := [one for one in pids if state(int(one)) not in ("Z", "X")]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return left


@pytest.mark.parametrize("way", ["returns", "crashes", "hangs"])
def test_programs_that_left_their_session_end_with_the_call(used, tmp_path, way):
    file = tmp_path / "pids"
    used([["leaves_behind", {"path": str(file), "way": way}]], "leaves_behind", tool_seconds=2.0)
    pids = file.read_text().split()
    assert len(pids) == len(toolkit.DAEMONS)
    assert gone(pids) == []


def test_they_are_gone_when_the_next_call_begins(used, tmp_path):
    file = tmp_path / "pids"
    _, listed = used([["leaves_behind", {"path": str(file)}], ["alive", {"path": str(file)}]], "leaves_behind", "alive")
    assert listed == "[]"


def test_those_of_an_environment_and_of_an_agent_end_with_the_attempt(used, tmp_path):
    file = tmp_path / "pids"
    used([["litter", {"path": str(file)}], ["litter", {"path": str(file)}]], environment_class=KIT + "Messy")
    with tempfile.TemporaryDirectory() as short:
        (outcome,) = roll([load_workflow(KIT + "litters", None, 60.0)], [list(map(ord, f"{short}/pids"))])
        assert outcome.reason is None
        pids = [*file.read_text().split(), *Path(f"{short}/pids").read_text().split()]
    assert len(pids) == 3 * len(toolkit.DAEMONS)
    assert gone(pids) == []


def test_calls_at_once_do_not_end_the_programs_of_one_another(used, tmp_path):
    """One call ends while another waits for a program in a session of its own."""
    asked = [["slept", {"seconds": 0.4}], *([["leaves_behind", {"path": str(tmp_path / "pids")}]] * 3)]
    assert used(asked, "slept", "leaves_behind", workflow="awaits")[0] == "slept 0"


@pytest.mark.parametrize(("arguments", "said"), [
    ({}, "name no tools"), ({"tools": ["tests.toolkit:nothing"]}, "cannot be imported"),
    ({"tools": [KIT + "add", KIT + "add"]}, "two of them"), ({"tools": [KIT + "Counter"]}, "no function"),
    ({"environment_class": KIT + "add"}, "no class derived"), ({"tools": [KIT + "generates"]}, "arguments that JSON")])
def test_tools_that_cannot_be_used_are_mistakes(arguments, said):
    with refuses((ConfigError, ValueError), said):
        Tool(lambda *rest: None) if "generates" in str(arguments) else load_tools(Toolset(ToolArguments(**arguments)))


def test_a_workflow_and_its_tools_get_their_own_arguments():
    found = load_workflow(KIT + "calls", {"tools": [KIT + "add"], "turns": 2, "asked": "[]", "tool_seconds": 3.0})
    assert (found.function.keywords, found.tools.settings.tool_seconds) == ({"turns": 2, "asked": "[]"}, 3.0)
    with refuses(ConfigError, "'tool'"):
        load_workflow(KIT + "calls", {"tool": [KIT + "add"], "asked": "[]"})
