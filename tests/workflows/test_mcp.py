"""MCP servers as tools: of the package `mcp` by stdio and by streamable HTTP, and servers that misbehave."""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from ouroboros.pipeline.settings.arguments.answers import ToolArguments
from ouroboros.pipeline.settings.arguments.mcp import McpServer
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.files import HOME
from ouroboros.workflows.attempts.isolated import host
from ouroboros.workflows.attempts.mcp_tools import _offered, listed, listed_now
from ouroboros.workflows.protocol.tools import McpTool, Toolset, load_tools
from ouroboros.workflows.single_turn import load_workflow
from tests.golden.messages import refuses, wording
from tests.servers import serving
from tests.workflows.test_isolated import roll
from tests.workflows.test_recording import roll as recorded
from tests.workflows.test_recording import rows

PLAIN = {"command": sys.executable, "args": [str(HOME / "tests" / "mcp_plain.py")]}
KIT = {"command": sys.executable, "args": ["-m", "tests.mcp_kit"]}
SECONDS = 100.0  # other tests share the machine


def plain(*way, **more):
    return {**PLAIN, "args": [*PLAIN["args"], *way], **more}


@pytest.fixture
def used(short):
    """What tools return to each of several attempts, which call others; or why an attempt failed."""
    def run(server, *asked, directory=None, seconds=SECONDS, **more):
        loaded = [load_workflow("tests.toolkit:calls", {
            "mcp": {"kit": server}, "asked": json.dumps(each), "tool_seconds": seconds, **more}, 300.0,
            directory or short) for each in asked]
        paths = [short / f"{place}" for place in range(len(asked))]
        outcomes = roll(loaded, [list(map(ord, str(path))) for path in paths])
        return [one.reason or json.loads(path.read_text()) for one, path in zip(outcomes, paths, strict=True)]

    return run


def ended(process):
    """Whether a killed process is gone, or about to be."""
    status = Path(f"/proc/{process}/stat")
    for _ in range(500):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if status.read_text().rpartition(") ")[2][0] != "Z":
                time.sleep(0.05)
                continue
        return True
    return False


def named(server, **more):
    settings = ToolArguments(mcp={"kit": server}, tool_seconds=more.pop("seconds", SECONDS), **more)
    return load_tools(Toolset(settings, listed(settings, None)))


def test_the_tools_of_a_program(used, monkeypatch):
    for name in ("A_TOKEN", "NAMED_KEY"):
        monkeypatch.setenv(name, "value")
    host.cache_clear()  # the process that forks attempts has the environment of its start
    pair, ways = {"pair": {"left": 2, "right": 5}}, ["raises", "noise", "long"]
    found, other = used(
        {**KIT, "env": ["NAMED_KEY"]},
        [["add", pair], ["add", {"pair": {"right": 1}}], ["add", {"pair": {"left": "x"}}], ["add", "[]"], ["add", "{"],
         ["words", {}], ["picture", {}], ["variables", {"names": ["A_TOKEN", "NAMED_KEY"]}], ["up", {}],
         ["up", {"by": 2}], *(["misbehaves", {"way": way}] for way in ways),
         ["misbehaves", '{"way": "\\ud83d"}'], ["up", {}]], [["up", {}]])
    assert found[0] == "7"
    assert [one.partition(":")[0] for one in found[1:5]] == ["error"] * 4
    wording([found[1:3]], "left", "integer")
    wording([found[5:7]], "The", "supported")
    assert json.loads(found[7]) == {"A_TOKEN": None, "NAMED_KEY": "value"}
    assert found[8:10] == ["now 1", "now 3"]
    raised, noise, long, half, last = found[10:]
    assert raised.startswith("error: ")
    assert "nothing there" in raised
    assert noise == "noise"
    assert len(long) < 70_000
    assert half.startswith("error: ")  # half of a surrogate pair
    assert last == "now 4"
    assert other == ["now 1"]  # the state is the attempt's


def test_schemas_of_other_languages():
    """A type of several, a schema that allows anything, and a regular expression of JavaScript."""
    schema = {"type": "object", "required": ["a"], "properties": {
        "a": {"type": ["string", "null"]}, "b": True, "c": {"type": "string", "pattern": r"^\p{L}+$"},
        "d": {"type": "string", "pattern": "^x"}}}
    listed_tool = {"name": "t", "description": "", "parameters": schema}
    _offered(McpServer(command="x"), [listed_tool])
    tool = McpTool("kit", McpServer(command="x"), listed_tool)
    assert [one.annotation for one in tool.signature.parameters.values()] == [Any, Any, str, str]
    assert tool.read('{"a": null, "c": "1"}') == {"a": None, "c": "1"}
    with refuses(ValueError, "d:"):
        tool.read('{"a": null, "d": "y"}')


def test_a_token_with_a_line_break_is_refused_and_not_shown():
    server = {"kit": {"url": "http://127.0.0.1:1/mcp", "token_env": "TOKEN"}}
    _, wrong = listed_now(ToolArguments(mcp=server, tool_seconds=SECONDS), {"TOKEN": "s3cret\n"})
    wording(wrong["kit"], "Authorization")
    assert "s3cret" not in wrong["kit"]


def test_a_program_that_dies_ends_its_attempt_or_only_its_call(used):
    asked = [["up", {}], ["misbehaves", {"way": "dies"}], ["up", {}]]
    found, other = used(KIT, asked, [["up", {}]])
    wording(found, "MCP", "'kit'", "code 3")
    assert other == ["now 1"]
    (found,) = used({**KIT, "stateful": False}, asked)
    wording([found], "now 1", "MCP", "kit", "code 3")


def test_what_is_no_message_is_not_read_and_a_huge_one_is_the_end(used):
    found, other = used(plain(), [["stray", {}], ["up", {}], ["reset", {}]], [["huge", {}]])
    assert found == ["now 1", "now 2", "now 3"]  # `reset` is that of the server, not of an environment
    wording(other, "MCP", "'kit'", "16 MiB")


@pytest.fixture
def url():
    """The address of a server with sessions, as before the protocol's version of 2026, and what it is asked: methods of
    HTTP and two headers."""
    from tests import mcp_kit

    app, seen = mcp_kit.server().streamable_http_app(), []

    async def watched(scope, receive, send):
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            if headers.get(b"mcp-method") == b"server/discover":
                return await Response(status_code=404)(scope, receive, send)
            seen.append((scope["method"], headers.get(b"authorization"), headers.get(b"x-api-key")))
        return await app(scope, receive, send)

    with serving(watched, lifespan="on") as address:
        yield f"{address}/mcp", seen


def test_the_tools_of_a_url(used, url, monkeypatch):
    monkeypatch.setenv("KIT_TOKEN", "secret")
    host.cache_clear()
    address, seen = url
    asked = [["add", {"pair": {"left": 2}}], ["misbehaves", {"way": "raises"}], ["words", {}], ["absent", {}]]
    found, other = used({"url": address, "token_env": "KIT_TOKEN", "headers": {"X-Api-Key": "k"}, "prefix": "kit_",
                         "tools": ["add", "words", "misbehaves"]},
                        [[f"kit_{name}", given] for name, given in asked], [["up", {}]])
    assert found[0] == "3"
    assert "nothing there" in found[1]
    assert found[2] == "one\ntwo"
    wording(found[3], "kit_add, kit_words, kit_misbehaves")
    wording(other[0], "'up'")
    assert {tuple(headers) for _, *headers in seen} == {(b"Bearer secret", b"k")}
    assert [method for method, *_ in seen].count("DELETE") == 1  # of the attempt that called it; a listing is killed


def test_a_url_that_does_not_answer_any_more_fails_attempts_that_call_it(used):
    from tests import mcp_kit

    with serving(mcp_kit.server().streamable_http_app(), lifespan="on") as address:
        server = {"url": f"{address}/mcp"}
        assert used(server, []) == [[]]
    asked, silent = used(server, [["up", {}]], [])
    wording(asked, "MCP", "'kit'", "ConnectError")
    assert silent == []


def test_tools_are_listed_once_for_a_stage_and_must_stay_the_same(used, short):
    mark = short / "mark"
    server, asked = plain("changes", str(mark)), [["up", {}]]
    assert used(server, asked, asked) == [["now 1"], ["now 1"]]
    (kept,) = short.glob("mcp-*.json")
    assert [one["name"] for one in json.loads(kept.read_text())["kit"]][:3] == ["note", "up", "reset"]
    mark.touch()
    expected = "the MCP server 'kit' does not offer the tool 'note' as it did"
    assert used(server, asked, [])[0].startswith(expected)
    kept.unlink()
    assert used(server, asked) == [["now 1"]]


def test_many_tools_in_pages_and_those_that_are_wanted():
    found = named(plain("many"))
    assert list(found) == [f"tool{number}" for number in range(1000)]
    found = named(plain("many", tools=["tool999", "tool7"], prefix="p_", idempotent=["tool7"]))
    assert {name: one.declaration.idempotent for name, one in found.items()} == {"p_tool7": True, "p_tool999": False}
    assert str(found["p_tool7"].signature) == "(*, path: str = None, line: str = None)"
    function = found["p_tool7"].definition["function"]
    assert (function["name"], function["description"]) == ("p_tool7", "the tool note")
    assert function["parameters"]["properties"]["line"] == {"type": "string"}


def test_servers_that_cannot_be_used_are_mistakes():
    wrong = {
        "absent": ({"command": "/nowhere/server"}, "cannot be started: No such file or directory: '/nowhere/server'"),
        "ends": (plain("ends"), "the MCP server 'ends' ended with exit code 1: no configuration"),
        "none": (plain("none"), "offers no tools"), "endless": (plain("endless"), "it lists more than 10000 tools"),
        "tool": (plain(tools=["sum"]), "has no tool 'sum'; it has note, up"),
        "again": (plain(idempotent=["sum"]), "has no tool 'sum'"),
        "variable": (plain(env=["ABSENT_KEY"]), "needs the environment variable ABSENT_KEY, which is not set"),
        "token": ({"url": "http://127.0.0.1:9", "token_env": "ABSENT_KEY"}, "ABSENT_KEY, which is not set"),
        "elsewhere": (plain("elsewhere"), "a tool 'note' with a wrong schema: a reference leads nowhere"),
        "nowhere": (plain("nowhere"), "a reference leads nowhere"), "malformed": (plain("malformed"), "'words' is not"),
        "url": ({"url": "http://127.0.0.1:9/mcp"}, "does not answer as an MCP server: ConnectError")}
    servers = {name: server for name, (server, _) in wrong.items()}
    found, said = listed_now(ToolArguments(mcp={**servers, "fine": PLAIN}, tool_seconds=SECONDS))
    assert [*found] == ["fine"]
    assert [name for name, (_, part) in wrong.items() if part not in said[name]] == [], said


def test_a_program_that_is_no_server_is_a_mistake():
    with refuses(ConfigError, "tool_seconds", "writes 'Welcome!"):
        named(plain("talks"), seconds=3.0)


def test_names_that_are_taken_need_a_prefix():
    with refuses(ConfigError, "'up'", "mcp.kit.prefix"):
        named(PLAIN, environment_class="tests.toolkit:Counter")
    assert {"up", "kit_up"} < {*named({**PLAIN, "prefix": "kit_"}, environment_class="tests.toolkit:Counter")}


@pytest.mark.parametrize(("servers", "said"), [
    ([], "a mapping"), ({"kit": {}}, "needed a command, or the url"),
    ({"kit": {"command": "a", "url": "http://b"}}, "needed a command, or the url"),
    ({"kit": {"command": "a", "args": "b"}}, "kit.args"), ({"kit": {"command": "a", "secret": 1}}, "kit.secret"),
    ({"kit": {"command": "a", "headers": {"A": "B"}}}, "env with a command"), ({"kit": "a"}, "kit"),
    ({"kit": {"url": "http://a", "args": ["b"]}}, "with a url"), ({"kit": {"url": "ftp://a"}}, "kit.url"),
    ({"kit": {"url": "http://*/mcp"}}, "kit.url"), ({"": {"command": "a"}}, "a name")])
def test_wrong_settings_are_mistakes(servers, said):
    with refuses(ValueError, "mcp") as error:
        ToolArguments(mcp=servers)
    assert said in str(error.value)


def test_agents_without_servers_do_not_import_the_package():
    asks = ("import sys, ouroboros.workflows.attempts.host, ouroboros.workflows.single_turn as s; "
            "s.load_workflow('tool_call_workflow', "
            "{'tools': ['tests.toolkit:add']}); sys.exit('mcp' in sys.modules or 'jsonschema' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", asks], cwd=HOME, check=False).returncode == 0


@pytest.mark.parametrize("stateful", [True, False])
def test_a_call_that_hangs_ends_with_all_that_the_server_started(used, short, stateful):
    file = short / "pid"
    asked = [["hang", {"path": str(file)}], ["up", {}]]
    found, other = used(plain(stateful=stateful), asked, [["up", {}]], seconds=5.0)
    if stateful:
        wording(found, "5 s", "(tool_seconds)", "MCP", "'kit'")
    else:
        wording([found], "5 s", "(tool_seconds)", "now 1")
    assert other == ["now 1"]
    assert ended(file.read_text())


@pytest.mark.parametrize(("idempotent", "stateful"), [
    ([], True), (["up", "note"], True), (["up"], True), (["up"], False)])
def test_after_a_kill_a_server_has_its_state_again_or_the_outcome_is_unknown(short, idempotent, stateful):
    """Lines of the journal: head, and twice reply, and intent and result of `up` and of `note`."""
    path, ledger, prompts = short / "journal", short / "ledger", [list(map(ord, str(short / "f")))]
    asked = [["up", {}], ["note", {"path": str(ledger), "line": "x"}]]
    declared = {0: False, 2: True}.get(len(idempotent), idempotent)
    one = load_workflow("tests.toolkit:calls", {
        "mcp": {"kit": plain(idempotent=declared, stateful=stateful)}, "asked": json.dumps(asked), "turns": 2,
        "tool_seconds": SECONDS}, 300.0, short)
    expected = rows(recorded(one, path, prompts=prompts))
    assert json.loads((short / "f").read_text()) == ["now 1", "x", "now 2", "x"]
    lines = path.read_bytes().splitlines(keepends=True)
    kinds = [json.loads(line[9:])["kind"] for line in lines]
    assert kinds == ["head", *["reply", "intent", "result", "intent", "result"] * 2]
    for kept in range(2, len(lines) + 1):
        path.write_bytes(b"".join(lines[:kept]))
        before = len(ledger.read_text().splitlines())
        (outcome,) = found = recorded(one, path, prompts=prompts)
        under_way = {3: "up", 5: "note", 8: "up", 10: "note"}.get(kept)
        known = {"up", "note"} if kept > 5 else {"up"}  # whose calls have made the state
        lost = stateful and 3 < kept < len(lines) and not known <= {*idempotent}
        undeclared = under_way and under_way not in idempotent
        if lost or undeclared:
            assert outcome.reason.startswith("outcome unknown: ")
        else:
            assert rows(found) == expected
        again = len(ledger.read_text().splitlines()) - before
        if not stateful:  # no recorded call is repeated
            assert again == (0 if undeclared else 2 - kinds[:kept].count("result") // 2)
