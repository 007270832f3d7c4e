"""Tools that workflow_args name: checked before a run, and part of what a stage is."""

import sys

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from ouroboros.pipeline.check import calls, user_code
from ouroboros.pipeline.check.named_functions import wrong_arguments
from ouroboros.pipeline.check.user_code import WORLD
from ouroboros.pipeline.settings.arguments.users import Signature
from ouroboros.pipeline.settings.config import users_code
from ouroboros.pipeline.settings.setting import leaves
from ouroboros.pipeline.store.files import HOME
from ouroboros.stages.own_code import takes
from tests import toolkit
from tests.configs import overridden, places
from tests.golden.messages import wording
from tests.servers import serving

SET = "buffer.explorer_input.taskset"
OWN = "buffer.explorer_input.default_eval_workflow_type=simple_workflow"


def found(workflow, arguments, functions=None):
    settings = overridden(f"{SET}.default_workflow_type={workflow}", f"{SET}.workflow_args={arguments}", OWN)
    return wrong_arguments(settings, functions)


def test_the_environment_that_a_workflow_has_by_default_is_asked_what_it_lacks(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # no bubblewrap
    monkeypatch.setattr(user_code, "_answers", user_code._answers.__wrapped__)  # other tests have it
    settings = overridden(f"{SET}.default_workflow_type=terminal_agent", OWN)
    functions, [wrong] = user_code.imported([settings])
    assert functions == {}
    assert "bwrap" in wrong
    assert user_code.imported([settings], known="'ouroboros.workflows.environments.terminal:Terminal'") == ({}, [])


class Idle(toolkit.Counter.__bases__[0]):
    def reward(self):
        return 1.0


def test_an_environment_without_a_tool_is_refused():
    assert "'tests.pipeline.check.test_tool_checks:Idle'" in takes("tests.pipeline.check.test_tool_checks:Idle", WORLD)
    assert not isinstance(takes("tests.toolkit:Counter", WORLD), str)


def test_the_arguments_of_a_workflow_and_of_its_tools_are_checked():
    assert found("tool_call_workflow", "{tools: [a:b], max_rounds: 3}") == []
    assert found("react_workflow", "{environment_class: a:B}") == []
    assert found("react_workflow", "{mcp: {kit: {command: a}}}") == []
    mine = {"tests.toolkit:calls": Signature.of(toolkit.calls)}
    assert found("tests.toolkit:calls", "{tools: [a:b], asked: x}", mine) == []
    assert places(found("tests.toolkit:calls", "{tools: [a:b], asked: x, model: 1}", mine)) == [f"{SET}.workflow_args"]


def named(task, model): ...
def by_name(*, prompt): ...
def agent(task, endpoint): ...
def plain(prompt, task): ...


@pytest.mark.parametrize(("workflow", "count"), [(named, 1), (by_name, 1), (agent, 0), (plain, 0)])
def test_a_workflow_is_given_its_prompt_by_position_and_the_task_by_name(workflow, count):
    name = f"tests.pipeline.check.test_tool_checks:{workflow.__name__}"
    assert places(found(name, "{}", {name: Signature.of(workflow)})) == [SET] * count


def silent(task, endpoint):
    return "a reply"


def by_environment(task, endpoint):
    print(task)  # OpenAI() finds the endpoint without being told


def constant(prompt):
    yield prompt


def answers(prompt):
    reply = yield prompt
    return reply


def test_a_workflow_that_cannot_make_an_attempt_is_found_by_its_code():
    for workflow in (silent, constant, answers, by_environment):
        taken = takes(f"tests.pipeline.check.test_tool_checks:{workflow.__name__}", "workflow")
        assert isinstance(taken, str) == (workflow in (silent, constant))


@pytest.mark.parametrize(("arguments", "place"), [
    ("{}", ""), ("{tools: []}", ""), ("{tools: a:b}", ".tools"), ("{tools: [a:b], tool_seconds: 0}", ".tool_seconds"),
    ("{tools: [a:b], tool: 1}", ""), ("{mcp: {kit: {}}}", ".mcp"), ("{mcp: [a]}", ".mcp"),
    ("{tools: [a:b], environment: [1]}", ".environment.0")])
def test_wrong_arguments_are_problems(arguments, place):
    assert f"{SET}.workflow_args{place}" in places(found("tool_call_workflow", arguments))


def test_tools_are_the_users_code_and_other_arguments_are_not():
    settings = overridden(f"{SET}.default_workflow_type=tool_call_workflow",
                          f"{SET}.workflow_args={{tools: [a:b, c:d], environment_class: e:F, environment: ['x:y']}}")
    assert [(key.rpartition(".")[2], name) for key, name in users_code(leaves(settings)) if "workflow_args" in key] == [
        ("tools", "a:b"), ("tools", "c:d"), ("environment_class", "e:F")]


def test_tools_are_imported_before_a_run():
    assert takes("tests.toolkit:add", "tool") is takes("tests.toolkit:Counter", "environment") is None
    assert takes("tests.toolkit:waits", "tool") is None  # an `async def` is a tool
    assert [words.split()[0] for words in takes("tests.toolkit:bare", "tool")["undescribed"]] == ["bare", "number"]
    assert "no class derived" in takes("tests.ledger_agents:Trajectory", "environment")
    assert "cannot be imported" in takes("tests.toolkit:nothing", "tool")


def test_servers_are_asked_before_a_run():
    """Also those of the user's workflows; not where the workflow takes no tools, or the arguments are wrong."""
    server = f"command: {sys.executable}, args: [{HOME / 'tests' / 'mcp_plain.py'}"
    mine = {"tests.toolkit:calls": Signature.of(toolkit.calls)}

    def asked(servers, workflow="tool_call_workflow", more=""):
        settings = overridden(f"{SET}.default_workflow_type={workflow}", OWN,
                              f"{SET}.workflow_args={{mcp: {servers}{more}}}")
        lines = []
        facts = calls.ask_servers([settings], mine, lambda stage, found, to: lines.extend(found))
        return facts, lines

    servers = f"{{kit: {{{server}]}}, ends: {{{server}, ends]}}, key: {{{server}], env: [ABSENT_KEY]}}}}"
    facts, lines = asked(servers)
    assert facts == [("kit", "6 tools")]
    assert places(lines) == [f"{SET}.workflow_args.mcp.ends", f"{SET}.workflow_args.mcp.key"]
    wording(str(lines[0]), "code 1")
    wording(str(lines[1]), "ABSENT_KEY")
    facts, lines = asked(f"{{kit: {{{server}]}}, b: {{{server}], tools: [up]}}}}", "tests.toolkit:calls",
                         ", tools: ['my_tools:note']")
    assert places(lines) == [f"{SET}.workflow_args.mcp.kit", f"{SET}.workflow_args.mcp.b"]
    wording(str(lines[0]), "'note'", "my_tools:note")
    wording(str(lines[1]), "'up'", "'kit'")
    assert asked("{kit: {}}") == asked(servers, "simple_workflow") == ([], [])


@pytest.mark.parametrize(("status", "listed", "model", "word"), [
    (200, ["m"], "m", None), (200, ["other"], "m", "warnings"), (404, [], "m", None), (401, ["m"], "m", "problems"),
    (503, [], "m", "problems"), (None, [], "m", "problems")])
@pytest.mark.parametrize("judge", [True, False], ids=["judge", "policy"])
def test_a_server_is_asked_for_its_models_once(judge, status, listed, model, word, monkeypatch):
    """Two stages name it; without a status no server is there."""
    monkeypatch.setenv("OURO_TEST_POLICY", "hush-hush")
    asked, found = [], []

    async def models(request):
        asked.append(request.headers["authorization"])
        return JSONResponse({"data": [{"id": one} for one in listed]}, status_code=status)

    with serving(Starlette(routes=[Route("/v1/models", models)])) as address:
        address = address if status else "http://127.0.0.1:9"
        given = f"{{judge_url: '{address}/v1', judge_model: {model}, judge_key_env: OURO_TEST_JUDGE}}"
        settings = overridden(f"{SET}.default_reward_fn_type=judge_reward", f"{SET}.reward_fn_args={given}",
                              "explorer.env_vars={OURO_TEST_JUDGE: hush-hush}")
        ask, key = calls.ask_judges, f"{SET}.reward_fn_args.judge_url"
        if not judge:
            ask, key = calls.ask_policies, "explorer.rollout_model.external.base_url"
            settings = overridden("mode=explore", "explorer.rollout_model.engine_type=openai",
                                  f"explorer.rollout_model.external={{base_url: '{address}/v1', model_name: {model}, "
                                  "api_key_env: OURO_TEST_POLICY}")
        facts = ask([settings, settings], lambda *added: found.append(added))
    assert [url for url, _ in facts] == [f"{address}/v1"]
    assert [(problems[0].key, words) for _, problems, words in found] == ([] if word is None else [(key, word)])
    assert asked == (["Bearer hush-hush"] if status else [])
