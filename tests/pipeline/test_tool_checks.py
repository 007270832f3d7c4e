"""Tools that workflow_args name: checked before a run, and part of what a stage is."""

import pytest

from pipeline.check.named_functions import wrong_arguments
from pipeline.settings.arguments.users import Signature
from pipeline.settings.config import users_code
from stages.own_code import takes
from tests import toolkit
from tests.configs import overridden, places

SET = "buffer.explorer_input.taskset"
OWN = "buffer.explorer_input.default_eval_workflow_type=simple_workflow"


def found(workflow, arguments, functions=None):
    settings = overridden(f"{SET}.default_workflow_type={workflow}", f"{SET}.workflow_args={arguments}", OWN)
    return wrong_arguments(settings, functions)


def test_the_arguments_of_a_workflow_and_of_its_tools_are_checked():
    assert found("tool_call_workflow", "{tools: [a:b], max_rounds: 3}") == []
    assert found("react_workflow", "{environment_class: a:B}") == []
    mine = {"tests.toolkit:calls": Signature.of(toolkit.calls)}
    assert found("tests.toolkit:calls", "{tools: [a:b], asked: x}", mine) == []
    assert places(found("tests.toolkit:calls", "{tools: [a:b], asked: x, model: 1}", mine)) == [f"{SET}.workflow_args"]


@pytest.mark.parametrize(("arguments", "place"), [
    ("{}", ""), ("{tools: []}", ""), ("{tools: a:b}", ".tools"), ("{tools: [a:b], tool_seconds: 0}", ".tool_seconds"),
    ("{tools: [a:b], tool: 1}", ""), ("{tools: [a:b], environment: [1]}", ".environment")])
def test_wrong_arguments_are_problems(arguments, place):
    assert f"{SET}.workflow_args{place}" in places(found("tool_call_workflow", arguments))


def test_tools_are_the_users_code_and_other_arguments_are_not():
    settings = overridden(f"{SET}.default_workflow_type=tool_call_workflow",
                          f"{SET}.workflow_args={{tools: [a:b, c:d], environment_class: e:F, environment: ['x:y']}}")
    assert [(key.rpartition(".")[2], name) for key, name in users_code(settings) if "workflow_args" in key] == [
        ("tools", "a:b"), ("tools", "c:d"), ("environment_class", "e:F")]


def test_tools_are_imported_before_a_run():
    assert takes("tests.toolkit:add", "tool") is takes("tests.toolkit:Counter", "tool") is None
    assert takes("tests.toolkit:waits", "tool") is None  # an `async def` is a tool
    assert "no class derived" in takes("tests.ledger_agents:Trajectory", "tool")
    assert "cannot be imported" in takes("tests.toolkit:nothing", "tool")
