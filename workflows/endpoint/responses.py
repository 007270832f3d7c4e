"""OpenAI's /v1/responses, without state: a request holds the whole conversation."""

from collections.abc import Iterator
from itertools import count
from typing import Annotated, Any

from pydantic import Field

from ouroboros.workflows.endpoint.chat import Message, OpenAI, Tool
from ouroboros.workflows.endpoint.dialect import (
    MODEL,
    Answer,
    Ask,
    Body,
    Refusal,
    constrained,
    contents,
    event,
    read,
    validated,
)

PARTS = ("text", "input_text", "output_text")


class ResponsesBody(Body):
    input: str | Annotated[list[dict[str, Any]], Field(min_length=1)]
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    max_output_tokens: int | None = Field(None, ge=1)
    text: dict | None = None
    parallel_tool_calls: bool | None = None


class Responses(OpenAI):
    """Responses of items: messages, function calls and their outputs."""

    path = "/v1/responses"

    def read(self, body: Any) -> Ask:
        found = read(ResponsesBody, body)
        if found.previous_response_id or found.conversation:
            raise Refusal(400, "previous_response_id and conversation need stored responses; send the whole "
                               "conversation in input", "unsupported")
        items = [{"role": "user", "content": found.input}] if isinstance(found.input, str) else found.input
        system = [{"role": "system", "content": found.instructions}] if found.instructions else []
        tools = [_tool(one) for one in found.tools or ()]
        form = (found.text or {}).get("format")
        return Ask("responses", [*system, *_messages(items)], tools, max_tokens=found.max_output_tokens,
                   stream=bool(found.stream), wishes=found.wishes(),
                   **constrained(found.tool_choice, tools, form, found.parallel_tool_calls is not False))

    def answer(self, ask: Ask, answer: Answer) -> dict:
        (choice,) = answer.choices
        cut = choice.finish == "length"
        part = {"type": "output_text", "text": choice.text, "annotations": [], "logprobs": []}
        message = {"type": "message", "id": f"msg-{answer.id}", "role": "assistant", "content": [part],
                   "status": "incomplete" if cut else "completed"}
        output = [message] if choice.text or not choice.calls else []
        output += [{"type": "function_call", "id": f"fc-{id_}", "call_id": id_, "name": name, "arguments": arguments,
                    "status": "completed"} for id_, name, arguments in choice.calls]
        return {
            "id": answer.id, "object": "response", "created_at": answer.created, "model": MODEL, "output": output,
            "status": "incomplete" if cut else "completed", "error": None, "instructions": None, "metadata": {},
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None, "parallel_tool_calls": True,
            "tool_choice": "auto", "tools": [], "temperature": None, "top_p": None,
            "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": answer.tokens,
                      "total_tokens": answer.prompt_tokens + answer.tokens,
                      "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                      "output_tokens_details": {"reasoning_tokens": 0}}}

    def events(self, ask: Ask, answer: Answer) -> Iterator[str]:
        whole, numbers = self.answer(ask, answer), count()

        def one(name: str, **content) -> str:
            return event({"type": name, "sequence_number": next(numbers), **content}, name)

        yield one("response.created", response={**whole, "output": [], "status": "in_progress", "usage": None})
        for index, item in enumerate(whole["output"]):
            is_message, at = item["type"] == "message", {"output_index": index, "item_id": item["id"]}
            empty = {**item, "status": "in_progress", **({"content": []} if is_message else {"arguments": ""})}
            yield one("response.output_item.added", output_index=index, item=empty)
            if is_message:
                (part,) = item["content"]
                at |= {"content_index": 0}
                yield one("response.content_part.added", **at, part={**part, "text": ""})
                yield one("response.output_text.delta", **at, delta=part["text"], logprobs=[])
                yield one("response.output_text.done", **at, text=part["text"], logprobs=[])
                yield one("response.content_part.done", **at, part=part)
            else:
                yield one("response.function_call_arguments.delta", **at, delta=item["arguments"])
                yield one("response.function_call_arguments.done", **at, arguments=item["arguments"], name=item["name"])
            yield one("response.output_item.done", output_index=index, item=item)
        yield one(f"response.{whole['status']}", response=whole)


def _messages(items: list[dict]) -> list[dict]:
    """Items as messages in OpenAI's form: a text and function calls of one reply are one message."""
    messages: list[dict] = []
    try:
        for item in items:
            kind = item.get("type", "message")
            if kind == "function_call":
                call = {"id": item["call_id"], "type": "function",
                        "function": {"name": item["name"], "arguments": item["arguments"]}}
                if not (messages and messages[-1]["role"] == "assistant"):
                    messages.append({"role": "assistant", "content": ""})
                messages[-1].setdefault("tool_calls", []).append(call)
            elif kind == "function_call_output":
                messages.append({"role": "tool", "tool_call_id": item["call_id"],
                                 "content": contents(item["output"], PARTS)})
            elif kind == "message" and item["role"] in ("system", "developer", "user", "assistant"):
                role = "system" if item["role"] == "developer" else item["role"]
                messages.append({"role": role, "content": contents(item["content"], PARTS)})
            else:
                raise Refusal(400, f"input has an item {kind!r} of role {item.get('role')!r}; needed message, "
                                   "function_call or function_call_output", "unsupported")
    except KeyError as missing:
        raise Refusal(400, f"an item of input has no {missing.args[0]}", "invalid_request") from missing
    return [validated(Message, one, "input").plain() for one in messages]


def _tool(tool: dict) -> dict:
    """A function tool in the form of chat completions."""
    if tool.get("type") != "function" or not isinstance(tool.get("name"), str):
        raise Refusal(400, f"a tool is {tool.get('type')!r}; needed functions with a name", "unsupported")
    function = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
    return validated(Tool, {"type": "function", "function": function}, "tools").model_dump(exclude_none=True)
