"""Agents that are built in: the model calls tools, through the chat template or as text, until it answers.

They ask the recorded endpoint like any agent (workflows/endpoint/), so what they train on is one row with a mask. The
standard library's client is enough for that, and starts at once in every attempt's process.
"""

import json
import re
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from ouroboros.pipeline.settings.arguments.answers import TerminalAgent, ToolWorkflow

DEFAULTS = ToolWorkflow()
TERMINAL = TerminalAgent()
ACTION = re.compile(r"^Action:[ \t]*(\S+)\s+Action Input:[ \t]*(.*)", re.M | re.S)
ANSWER = re.compile(r"^Final Answer:[ \t]*(.*)", re.M | re.S)
OBSERVATION = "Observation:"
REACT = """Answer with the help of these tools:
{tools}

Write in this form:
Thought: what to do next
Action: the name of a tool
Action Input: its arguments as JSON
Observation: what the tool returned, which is given to you
(and so on, as often as needed)
Final Answer: the answer
"""


def tool_call_workflow(task, endpoint, toolbox, max_rounds: int = DEFAULTS.max_rounds) -> Any:
    """The answer, or the environment's reward, after at most max_rounds replies of a model that calls tools by the
    format of its chat template (explorer.tool_call_parser)."""
    messages, said = _opening(task, toolbox), None
    for _ in range(max_rounds):
        reply = _ask(endpoint, messages, tools=toolbox.definitions)
        said = reply or said
        if not reply or not reply.get("tool_calls"):
            break
        messages.append(reply)
        messages += [{"role": "tool", "tool_call_id": one["id"],
                      "content": toolbox.call(one["function"]["name"], one["function"]["arguments"])}
                     for one in reply["tool_calls"]]
    return _result(toolbox, said["content"] or "" if said else "")


def terminal_agent(task, endpoint, toolbox, max_rounds: int = TERMINAL.max_rounds) -> Any:
    """The reward of a task that a model does in a shell: it runs commands with `bash` and writes files with `edit`
    until a reply calls no tool, after at most max_rounds replies."""
    return tool_call_workflow(task, endpoint, toolbox, max_rounds)


def react_workflow(task, endpoint, toolbox, max_rounds: int = DEFAULTS.max_rounds) -> Any:
    """The answer, or the environment's reward, after at most max_rounds replies of a model that writes Thought, Action
    and Final Answer (Yao et al. 2023, arXiv:2210.03629)."""
    messages, answer = _opening(task, toolbox), ""
    tools = "\n".join(json.dumps(one["function"], ensure_ascii=False) for one in toolbox.definitions)
    messages[0] = {**messages[0], "content": f"{REACT.format(tools=tools)}\n{messages[0]['content']}"}
    for _ in range(max_rounds):
        if not (reply := _ask(endpoint, messages, stop=[OBSERVATION])):
            break
        said = reply["content"] or ""
        final, action = ANSWER.search(said), ACTION.search(said)
        answer = final[1].strip() if final else said.strip()
        if final or not action:
            break
        seen = toolbox.call(action[1], action[2].strip())
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"{OBSERVATION} {seen}"}]
    return _result(toolbox, answer)


def _opening(task, toolbox) -> list[dict]:
    """The messages of a task; what an environment shows at first follows the last one."""
    *before, last = task.messages
    seen = toolbox.reset() if toolbox.has_environment else ""
    return [*before, {**last, "content": f"{last['content']}\n{seen}" if seen else last["content"]}]


def _result(toolbox, answer: str) -> Any:
    reward = toolbox.reward() if toolbox.has_environment else None
    return answer if reward is None else reward


def _ask(endpoint, messages: list[dict], **more) -> dict | None:
    """The model's reply as a message; None when the conversation leaves no room for one."""
    address = urlsplit(endpoint.base_url)
    connection = HTTPConnection(address.hostname, address.port)
    body = json.dumps({"model": endpoint.model, "messages": messages, **more})
    connection.request("POST", f"{address.path}/chat/completions", body, {
        "Authorization": f"Bearer {endpoint.api_key}", "Content-Type": "application/json"})
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    if answer.status == 200:
        return found["choices"][0]["message"]
    if found["error"]["code"] == "context_length_exceeded":
        return None
    raise RuntimeError(found["error"]["message"])
