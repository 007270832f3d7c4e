"""Anthropic's /v1/messages."""

import json
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, Field

from ouroboros.pipeline.store.foreign_text import flaw
from ouroboros.workflows.endpoint.chat import Message
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
    texts,
    validated,
)

REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
KINDS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 413: "request_too_large",
         415: "invalid_request_error"}


class Turn(BaseModel):
    role: Literal["user", "assistant"]
    content: str | list[dict[str, Any]]


class Tool(BaseModel):
    name: str
    description: str | None = None
    input_schema: dict[str, Any]


class MessagesBody(Body):
    messages: list[Turn] = Field(min_length=1)
    max_tokens: int = Field(ge=1)
    system: Any = None
    tools: list[Tool] | None = None
    tool_choice: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None


class Messages:
    """Messages of blocks: text, tool_use and tool_result."""

    path = "/v1/messages"

    def read(self, body: Any) -> Ask:
        found = read(MessagesBody, body)
        system = texts(found.system)
        messages = [{"role": "system", "content": system}] if system else []
        for turn in found.messages:
            messages += _from_blocks(turn)
        tools = [{"type": "function", "function": {"name": tool.name, "description": tool.description or "",
                                                   "parameters": tool.input_schema}} for tool in found.tools or ()]
        choice, form = found.tool_choice or {}, (found.output_config or {}).get("format")
        return Ask("messages", messages, tools, max_tokens=found.max_tokens,
                   stop=[one for one in found.stop_sequences or () if one], stream=bool(found.stream),
                   wishes=found.wishes(),
                   **constrained(choice, tools, form, not choice.get("disable_parallel_tool_use")))

    def answer(self, ask: Ask, answer: Answer) -> dict:
        (choice,) = answer.choices
        content = [{"type": "text", "text": choice.text}] if choice.text or not choice.calls else []
        content += [{"type": "tool_use", "id": id_, "name": name, "input": _object(arguments)}
                    for id_, name, arguments in choice.calls]
        return {"id": answer.id, "type": "message", "role": "assistant", "model": MODEL, "content": content,
                "stop_reason": REASONS[choice.finish], "stop_sequence": None,
                "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": answer.tokens}}

    def events(self, ask: Ask, answer: Answer) -> Iterator[str]:
        whole = self.answer(ask, answer)
        begin = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 0}}
        yield _event("message_start", message=begin)
        for index, block in enumerate(whole["content"]):
            is_text = block["type"] == "text"
            empty = {**block, **({"text": ""} if is_text else {"input": {}})}
            delta = ({"type": "text_delta", "text": block["text"]} if is_text else
                     {"type": "input_json_delta", "partial_json": json.dumps(block["input"])})
            yield _event("content_block_start", index=index, content_block=empty)
            yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        yield _event("message_delta", usage=whole["usage"],
                     delta={"stop_reason": whole["stop_reason"], "stop_sequence": None})
        yield _event("message_stop")

    def error(self, refusal: Refusal) -> dict:
        kind = KINDS.get(refusal.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": refusal.message}}


def _event(name: str, **content) -> str:
    return event({"type": name, **content}, name)


def _from_blocks(turn: Turn) -> list[dict]:
    """A turn in OpenAI's form: results of tools are separate messages, before the text of the user."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    shown, calls, results = [], [], []
    for block in turn.content:
        kind = block.get("type")
        try:
            if kind == "tool_use" and turn.role == "assistant":
                calls.append({"id": block["id"], "type": "function", "function": {
                    "name": block["name"], "arguments": json.dumps(block["input"], ensure_ascii=False)}})
            elif kind == "tool_result" and turn.role == "user":
                results.append({"role": "tool", "tool_call_id": block["tool_use_id"],
                                "content": contents(block.get("content"))})
            else:
                shown.append(block)
        except KeyError as error:
            raise Refusal(400, f"a block {kind} has no {error.args[0]}", "invalid_request") from error
    own = {"role": turn.role, "content": contents(shown), **({"tool_calls": calls} if calls else {})}
    found = [*results, *([own] if shown or calls or not results else [])]
    return [validated(Message, one, "messages").plain() for one in found]


def _object(arguments: str) -> Any:
    """Arguments of a call as an object; what the model wrote in place of one is its only field."""
    try:
        found = json.loads(arguments)
        found = arguments if flaw(found) else found  # the model may write NaN, or half of a surrogate pair
    except (ValueError, RecursionError):
        found = arguments
    return found if isinstance(found, dict) else {"arguments": found}
