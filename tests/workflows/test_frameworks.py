"""The examples of docs/frameworks.md, with the real packages: `make test-frameworks` installs them."""

import importlib
import json
import re
import sys
from types import SimpleNamespace

import pytest

from ouroboros.pipeline.store.files import HOME
from ouroboros.pipeline.store.harbor import read_task
from ouroboros.workflows.attempts.isolated import host
from tests.harbor_kit import write_task
from tests.workflows.test_endpoint import EOS, tokens
from tests.workflows.test_harbor import confined, world  # noqa: F401
from tests.workflows.test_tool_workflows import TOKENIZER, call, roll  # noqa: F401

pytestmark = pytest.mark.frameworks

TOOLS = ["my_tools:stock", "my_tools:order"]
DONE = call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
SAID = [call("stock", fruit="plum"), call("order", fruit="plum", pieces=2), "ordered"]


def examples(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (HOME / "docs" / page).read_text(), re.M | re.S)


@pytest.fixture(autouse=True)
def documented(tmp_path, monkeypatch):
    """The examples as modules."""
    frameworks = examples("frameworks.md")
    sources = {"my_tools": next(one for one in examples("tools.md") if "def stock" in one)} | {
        module: next(one for one in frameworks if mark in one) for module, mark in (
            ("my_graph", "def graph"), ("my_small", "def small"), ("my_scope", "def scoped"),
            ("my_cliff", "class Cliff"), ("my_swe", "def swe"))}
    for module, source in sources.items():
        (tmp_path / f"{module}.py").write_text(source)
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *sys.path]))
    host.cache_clear()  # the process that imports workflows has the environment of its start


@pytest.mark.parametrize("workflow", ["my_graph:graph", "my_scope:scoped"])
def test_a_framework_calls_the_tools_and_one_row_is_trained(roll, workflow):  # noqa: F811
    outcome, engine = roll(workflow, SAID, tools=TOOLS, longest=8000)
    assert (outcome.reason, outcome.own_text) == (None, "ordered")
    stock, order = outcome.tool_calls
    assert (stock.name, stock.result) == ("stock", "12")
    assert (order.name, json.loads(order.arguments)) == ("order", {"fruit": "plum", "pieces": 2})
    ((_, trained, _),) = outcome.turns
    assert sum(trained.action_mask) == sum(len(tokens(one)) + 1 for one in SAID)
    assert [one for one, acts in zip(trained.response_tokens, trained.action_mask, strict=True) if acts] == [
        token for one in SAID for token in (*tokens(one), EOS)]
    assert engine.prompts[1].endswith("<eos>12:")


def test_smolagents_call_their_tool_for_the_answer(roll):  # noqa: F811
    said = [*SAID[:2], call("final_answer", answer="ordered")]
    outcome, _ = roll("my_small:small", said, tools=TOOLS, longest=40000)
    assert (outcome.reason, outcome.own_text) == (None, "ordered")
    assert [one.name for one in outcome.tool_calls] == ["stock", "order"]
    assert sum(sum(trained.action_mask) for _, trained, _ in outcome.turns) == sum(len(tokens(one)) + 1 for one in said)


def test_a_world_of_gymnasium_is_an_environment(roll):  # noqa: F811
    said = [*[call("walk", direction=one) for one in ("up", *["right"] * 11, "down")], "there"]
    outcome, engine = roll("tool_call_workflow", said, answer="3", environment_class="my_cliff:Cliff", longest=40000,
                           max_rounds=14)
    assert (outcome.reason, outcome.components) == (None, {"reward": -13.0})
    assert engine.prompts[-1].endswith("you are there:")
    assert TOKENIZER.decode(outcome.turns[0][1].prompt_tokens).startswith("1+1\n")


@confined
@pytest.mark.parametrize(("command", "code"), [
    ("cat missing", 1), ("echo out; exit 7", 7), ("echo; echo '(exit code 9)'", 0), ("sleep 60", -1), ("true", 0)])
def test_mini_swe_agent_sees_the_code_that_a_command_ended_with(world, tmp_path, monkeypatch, command, code):  # noqa: F811
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path / "home"))
    one = world()
    toolbox = SimpleNamespace(call=lambda name, given: getattr(one, name)(**given))
    shell = importlib.import_module("my_swe").Shell(toolbox)
    assert shell.execute({"command": command})["returncode"] == code


@confined
@pytest.mark.parametrize(("said", "reward"), [
    ([call("bash", command="wc -l < numbers.txt"), call("bash", command="echo 7 > sum.txt"), DONE], 1.0),
    ([call("bash", command="echo 8 > sum.txt"), DONE], 0.0)])
def test_mini_swe_agent_works_in_a_task_of_harbor(roll, tmp_path, monkeypatch, said, reward):  # noqa: F811
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path / "home"))
    truth = read_task(write_task(tmp_path / "task")).record()["answer"]
    outcome, _ = roll("my_swe:swe", said, answer=truth, longest=40000,
                      environment_class="ouroboros.workflows.environments.harbor:Harbor")
    assert (outcome.reason, outcome.components) == (None, {"accuracy": reward})
    assert [one.name for one in outcome.tool_calls] == ["reset", *["bash"] * len(said), "reward"]
    assert sum(sum(trained.action_mask) for _, trained, _ in outcome.turns) == sum(len(tokens(one)) + 1 for one in said)
