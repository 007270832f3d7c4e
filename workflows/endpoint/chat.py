"""OpenAI's /v1/chat/completions and /v1/completions."""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, Field

from ouroboros.workflows.endpoint.dialect import (
    MODEL,
    Answer,
    Ask,
    Body,
    Choice,
    Refusal,
    constrained,
    contents,
    event,
    read,
    texts,
)


class Function(BaseModel):
    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    function: Function
    type: Literal["function"] = "function"


class Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Any = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same, as newer servers name it

    def plain(self) -> dict:
        content = (contents if self.role in ("user", "tool") else texts)(self.content)
        given = {"role": "system" if self.role == "developer" else self.role, "content": content,
                 "name": self.name, "tool_call_id": self.tool_call_id,
                 "reasoning_content": self.reasoning_content or self.reasoning,
                 "tool_calls": [call.model_dump() for call in self.tool_calls or ()]}
        return {key: value for key, value in given.items() if value or key == "content"}


class Description(BaseModel):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    type: Literal["function"]
    function: Description


class ChatBody(Body):
    messages: list[Message] = Field(min_length=1)
    tools: list[Tool] | None = None
    tool_choice: Any = None
    n: int | None = Field(1, ge=1, le=128)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None
    stream_options: dict | None = None
    logprobs: bool | None = False
    response_format: dict | None = None
    parallel_tool_calls: bool | None = None


class CompletionBody(Body):
    prompt: str | list[int]
    n: int | None = Field(1, ge=1, le=128)
    max_tokens: int | None = Field(16, ge=1)
    stop: str | list[str] | None = None
    stream_options: dict | None = None
    logprobs: int | None = Field(None, ge=0, le=1)


def _listed(stop: str | list[str] | None) -> list[str]:
    return [one for one in ([stop] if isinstance(stop, str) else stop or []) if one]


class OpenAI:
    """What its dialects have in common."""

    def error(self, refusal: Refusal) -> dict:
        return {"error": {"message": refusal.message, "type": "invalid_request_error", "param": None,
                          "code": refusal.code}}


class Chat(OpenAI):
    """Chat completions."""

    path = "/v1/chat/completions"

    def read(self, body: Any) -> Ask:
        found = read(ChatBody, body)
        if found.extra("top_logprobs") or found.extra("functions"):
            raise Refusal(400, "top_logprobs and functions are not supported; logprobs has the sampled token's, "
                               "tools describes functions", "unsupported")
        tools = [one.model_dump(exclude_none=True) for one in found.tools or ()]
        return Ask(
            "chat.completions", [one.plain() for one in found.messages], tools,
            number=found.n or 1, max_tokens=found.max_completion_tokens or found.max_tokens, stop=_listed(found.stop),
            stream=bool(found.stream), stream_usage=bool((found.stream_options or {}).get("include_usage")),
            logprobs=bool(found.logprobs), wishes=found.wishes(),
            **constrained(found.tool_choice, tools, found.response_format, found.parallel_tool_calls is not False))

    def answer(self, ask: Ask, answer: Answer) -> dict:
        choices = [
            {"index": index, "finish_reason": choice.finish, "logprobs": self._logprobs(ask, answer, index),
             "message": {**choice.message, "content": self._content(choice), "refusal": None}}
            for index, choice in enumerate(answer.choices)]
        return {**_head(answer, "chat.completion"), "choices": choices, "usage": _usage(answer)}

    def events(self, ask: Ask, answer: Answer) -> Iterator[str]:
        head = _head(answer, "chat.completion.chunk")
        for index, choice in enumerate(answer.choices):
            deltas: list[dict] = [{"role": "assistant", "content": ""}]
            deltas += [{"content": choice.text}] if choice.text else []
            deltas += [{"tool_calls": [{"index": place, **call}]}
                       for place, call in enumerate(choice.message.get("tool_calls", ()))]
            for place, delta in enumerate([*deltas, {}]):
                finish = choice.finish if place == len(deltas) else None
                logprobs = self._logprobs(ask, answer, index) if place == 1 else None
                yield event({**head, "choices": [
                    {"index": index, "delta": delta, "finish_reason": finish, "logprobs": logprobs}]})
        if ask.stream_usage:
            yield event({**head, "choices": [], "usage": _usage(answer)})
        yield event("[DONE]")

    def _content(self, choice: Choice) -> str | None:
        return None if choice.calls and not choice.text else choice.text

    def _logprobs(self, ask: Ask, answer: Answer, index: int) -> dict | None:
        return {"refusal": None, "content": [
            {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []}
            for text, value in answer.logprobs[index]]} if ask.logprobs else None


class Completions(OpenAI):
    """Completions of a text or of token ids."""

    path = "/v1/completions"

    def read(self, body: Any) -> Ask:
        found = read(CompletionBody, body)
        if any(found.extra(name) for name in ("echo", "suffix", "best_of")):
            raise Refusal(400, "echo, suffix and best_of are not supported", "unsupported")
        return Ask("completions", (), (), False, found.prompt, found.n or 1, found.max_tokens, _listed(found.stop),
                   bool(found.stream), bool((found.stream_options or {}).get("include_usage")),
                   found.logprobs is not None, found.wishes())

    def answer(self, ask: Ask, answer: Answer) -> dict:
        choices = [self._choice(ask, answer, index) for index in range(len(answer.choices))]
        return {**_head(answer, "text_completion"), "choices": choices, "usage": _usage(answer)}

    def events(self, ask: Ask, answer: Answer) -> Iterator[str]:
        head = _head(answer, "text_completion")
        for index in range(len(answer.choices)):
            yield event({**head, "choices": [self._choice(ask, answer, index)]})
        if ask.stream_usage:
            yield event({**head, "choices": [], "usage": _usage(answer)})
        yield event("[DONE]")

    def _choice(self, ask: Ask, answer: Answer, index: int) -> dict:
        choice, logprobs = answer.choices[index], None
        if ask.logprobs:
            tokens = [text for text, _ in answer.logprobs[index]]
            logprobs = {"tokens": tokens, "token_logprobs": choice.logprobs, "top_logprobs": None,
                        "text_offset": [len("".join(tokens[:place])) for place in range(len(tokens))]}
        return {"index": index, "text": choice.text, "finish_reason": choice.finish, "logprobs": logprobs}


def _head(answer: Answer, kind: str) -> dict:
    return {"id": f"{answer.id}", "object": kind, "created": answer.created, "model": MODEL}


def _usage(answer: Answer) -> dict:
    return {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.tokens,
            "total_tokens": answer.prompt_tokens + answer.tokens}
