"""An agent with one tool, written for the client of OpenAI: multiplies with a calculator (recipe products).

Nothing here knows of training: `endpoint` has what the client needs. The client is made once, before attempts are
forked, because loading certificates takes a quarter of a second.
"""

import json

from openai import OpenAI

CLIENT = OpenAI(base_url="http://127.0.0.1", api_key="-", max_retries=0)
CALCULATOR = {"type": "function", "function": {
    "name": "calc", "description": "The value of a product such as 12*34.",
    "parameters": {"type": "object", "properties": {"e": {"type": "string"}}, "required": ["e"]}}}
ROUNDS = 3  # most calls of the model in an attempt


def calculate(task, endpoint, tools: bool = True) -> str:
    """The answer to a product. tools: whether the calculator may be used."""
    client = CLIENT.with_options(base_url=endpoint.base_url, api_key=endpoint.api_key)
    messages, offered = list(task.messages), {"tools": [CALCULATOR]} if tools else {}
    for _ in range(ROUNDS):
        said = client.chat.completions.create(model=endpoint.model, messages=messages, **offered).choices[0].message
        if not said.tool_calls:
            return said.content or ""
        messages.append(said)
        messages += [{"role": "tool", "tool_call_id": call.id, "content": product(call.function.arguments)}
                     for call in said.tool_calls]
    return ""


def product(arguments: str) -> str:
    """The tool: the value of `{"e": "12*34"}`, or what is wrong with it."""
    try:
        left, right = json.loads(arguments)["e"].split("*")
        return str(int(left) * int(right))
    except (ValueError, KeyError, TypeError, AttributeError):
        return "error"
