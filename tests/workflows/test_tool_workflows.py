"""The built-in agents with tools: one row of the sampled tokens, and the reward of an environment."""

import json
import re
import sys

import pytest

from ouroboros.pipeline.store import records
from ouroboros.pipeline.store.files import HOME
from ouroboros.stages.model import character_tokenizer
from ouroboros.workflows.attempts.isolated import host
from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.protocol.outcomes import Sampling
from ouroboros.workflows.single_turn import load_workflow
from ouroboros.workflows.task_at_hand import TaskAtHand, bound
from tests.factories import row
from tests.golden.messages import wording
from tests.workflows.test_endpoint import EOS, Scripted, tokens
from tests.workflows.test_retry import rated

TOKENIZER = character_tokenizer(2000)
TOKENIZER.chat_template = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}:{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}<tool_call>"
    "{{ {'name': call['function']['name'], 'arguments': call['function']['arguments']} | tojson }}</tool_call>"
    "{% endfor %}{{ eos_token }}{% else %}{{ message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}:{% endif %}")


@pytest.fixture
def roll(settings):
    """One attempt; the replies of the model are `texts`."""
    def run(workflow, texts, question="1+1", answer="2", longest=2000, **arguments):
        config = settings(f"model.max_prompt_tokens={longest // 2}", f"model.max_response_tokens={longest // 8}",
                          f"model.max_model_len={longest}", "explorer.tool_call_parser=hermes")
        task = TaskAtHand(row(records.Task, task_id="t", question=question, answer=answer), rated(), TOKENIZER, config)
        engine = Scripted(*texts)
        one = bound(load_workflow(workflow, arguments, 600.0), lambda: task)
        room = max(longest, 2000)
        sampling = Sampling(1.0, 1.0, -1, room * 3 // 4, room // 8, room)
        return roll_out(engine, [one], [[5]], [7], [sampling])[0], engine

    return run


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_the_model_calls_tools_until_it_answers(roll):
    said = [call("add", left=1), call("sub") + call("add", left="x"), "2"]
    outcome, engine = roll("tool_call_workflow", said, tools=["tests.toolkit:add"])
    assert (outcome.reason, outcome.own_text) == (None, "2")
    ((_, trained, _),) = outcome.turns
    assert TOKENIZER.decode(trained.prompt_tokens) == "1+1:"
    assert trained.response_tokens[: len(tokens(said[0])) + 1] == [*tokens(said[0]), EOS]
    assert sum(trained.action_mask) == sum(len(tokens(one)) + 1 for one in said)
    seen = [prompt.rpartition("<eos>")[2] for prompt in engine.prompts]
    assert seen[1] == "2:"
    wording(seen[2], "'sub'")


def test_an_environment_shows_itself_and_gives_the_reward(roll):
    said = [call("up"), call("up", by=2), "done"]
    outcome, engine = roll("tool_call_workflow", said, question="Count to 3.", answer="3",
                           environment_class="tests.toolkit:Counter")
    assert (outcome.reason, outcome.components) == (None, {"accuracy": 1.0})
    assert engine.prompts[0] == "Count to 3.\nfrom 0:"
    assert engine.prompts[2].endswith("<eos>now 3:")
    assert roll("tool_call_workflow", said[1:], question="q", answer="3",
                environment_class="tests.toolkit:Counter")[0].components == {"accuracy": 0.0}


def test_rounds_and_room_end_an_attempt(roll):
    said = [call("add", left=1)] * 9
    outcome, _ = roll("tool_call_workflow", said, tools=["tests.toolkit:add"], max_rounds=2)
    assert (outcome.reason, len(outcome.calls)) == (None, 2)
    outcome, _ = roll("tool_call_workflow", said, tools=["tests.toolkit:add"], longest=200)
    assert outcome.reason is None
    assert 1 < len(outcome.calls) < 8


def test_thought_action_and_observation(roll):
    said = ["Thought: add\nAction: add\nAction Input: {\"left\": 1}\nObservation:", "Thought: so\nFinal Answer: 2"]
    outcome, engine = roll("react_workflow", said, tools=["tests.toolkit:add"])
    assert (outcome.reason, outcome.own_text) == (None, "2")
    assert '{"name": "add", "description": "The sum of two numbers."' in engine.prompts[0]
    assert engine.prompts[0].endswith("1+1:")
    assert engine.prompts[1].endswith("Observation: 2:")
    ((_, trained, _),) = outcome.turns
    assert sum(trained.action_mask) == len(tokens(said[0])) + len(tokens(said[1])) + 1  # up to the stop text
    assert roll("react_workflow", ["just 2"], tools=["tests.toolkit:add"])[0].own_text == "just 2"


@pytest.fixture
def documented(tmp_path, monkeypatch):
    """The examples of the documentation as modules."""
    examples = re.findall(r"^```python\n(.*?)^```$", (HOME / "docs" / "tools.md").read_text(), re.M | re.S)
    for module, mark in (("my_tools", "def stock"), ("my_shop", "def shop"), ("my_world", "class Doors"),
                         ("my_server", "MCPServer")):
        (tmp_path / f"{module}.py").write_text(next(one for one in examples if mark in one))
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    host.cache_clear()  # the process that imports workflows has the environment of its start


def test_the_documented_tools_run(roll, documented):
    said = [call("stock", fruit="plum"), call("order", fruit="plum", pieces=2), "ordered"]
    names = ["my_tools:stock", "my_tools:order"]
    outcome, engine = roll("tool_call_workflow", said, tools=names, max_rounds=6)
    assert (outcome.reason, outcome.own_text) == (None, "ordered")
    assert engine.prompts[1].endswith("<eos>12:")
    assert re.search(r'<eos>\{"ordered": 2, "number": "[0-9a-f]{4}"\}:$', engine.prompts[2])
    outcome, engine = roll("my_shop:shop", [said[1]], tools=names)
    assert outcome.reason is None
    assert engine.prompts[0].endswith("12 plums are left.:")
    assert '\\"ordered\\": 2' in outcome.own_text


def test_the_documented_environment_runs(roll, documented):
    outcome, engine = roll("tool_call_workflow", [call("open", door=1), call("open", door=3), "done"],
                           environment_class="my_world:Doors", answer="3")
    assert (outcome.reason, outcome.components) == (None, {"accuracy": 1.0})
    assert engine.prompts[0] == "1+1\nThere are the doors 1, 2 and 3.:"
    assert engine.prompts[1].endswith("nothing:")


def test_the_documented_server_runs(roll, documented):
    servers = {"shop": {"command": sys.executable, "args": ["-m", "my_server"], "idempotent": True}}
    outcome, engine = roll("tool_call_workflow", [call("put", fruit="plum"), call("put", fruit="pear"), "done"],
                           mcp=servers, tool_seconds=100.0)
    assert (outcome.reason, outcome.own_text) == (None, "done")
    assert engine.prompts[1].endswith("<eos>1 in the basket:")
    assert engine.prompts[2].endswith("<eos>2 in the basket:")
