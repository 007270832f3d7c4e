"""The agent: asks the model, runs the tools that it calls, and asks again until it answers.

`endpoint` has what a client needs to reach the model that is trained. Nothing else here knows of training.
"""

from openai import OpenAI

CLIENT = OpenAI(base_url="http://127.0.0.1", api_key="-", max_retries=0)  # made once, for all attempts
ROUNDS = 4  # most replies of an attempt


def answer(task, endpoint, toolbox) -> str:
    """The answer to a task. toolbox: the tools that the recipe names (workflow_args.tools)."""
    client = CLIENT.with_options(base_url=endpoint.base_url, api_key=endpoint.api_key)
    messages = list(task.messages)
    for _ in range(ROUNDS):
        reply = client.chat.completions.create(model=endpoint.model, messages=messages, tools=toolbox.definitions)
        said = reply.choices[0].message
        if not said.tool_calls:
            return said.content or ""
        messages.append(said)
        messages += [{"role": "tool", "tool_call_id": call.id,
                      "content": toolbox.call(call.function.name, call.function.arguments)}
                     for call in said.tool_calls]
    return ""
