"""What the dialects of the endpoint share: requests and replies, refusals, fields of bodies, server-sent events."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ouroboros.pipeline.store.pictures import Picture
from ouroboros.workflows.protocol.forced_calls import ANY_OBJECT, calls_schema
from ouroboros.workflows.protocol.prompts import arguments_of

MODEL = "policy"  # name of the model that is trained
SHIFTS = ("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_p", "top_a")
WISHES = ("temperature", "top_p", "top_k", "seed")


Fields = TypeVar("Fields", bound=BaseModel)


class Refusal(Exception):
    """A request that is not answered. status: of HTTP; code: for programs."""

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


class Body(BaseModel):
    """Fields that a dialect reads. Others are kept, so that those that change the distribution can be refused."""

    model_config = ConfigDict(extra="allow", protected_namespaces=(), strict=True)  # true is no number
    model: str
    stream: bool | None = False

    def extra(self, name: str) -> Any:
        return (self.model_extra or {}).get(name)

    def wishes(self) -> dict:
        """Sampling parameters that the client set. Raises Refusal for those that cannot be overridden or ignored."""
        for name in SHIFTS:
            if self.extra(name) not in (None, 0, 0.0, {}, *((1, 1.0) if name == "repetition_penalty" else ())):
                raise Refusal(400, f"{name} changes the distribution that is trained; leave it out", "unsupported")
        return {name: self.extra(name) for name in WISHES if self.extra(name) is not None}


@dataclass(frozen=True)
class Ask:
    """A request, whichever dialect it came in. messages, tools: in OpenAI's form, with images as parts {type: image,
    image}, a data URI or base64 until the conversation has `looked` at them.

    calls_tools: whether tool calls are looked for in the reply.
    prompt: token ids or text to continue in place of messages. wishes: sampling parameters that the client set.
    schema: JSON schema of the reply; forced: it is that of tool calls (workflows/protocol/forced_calls.py). role: of
    the player that asks; None: the attempt has none.
    """

    api: str
    messages: Sequence[dict] = ()
    tools: Sequence[dict] = ()
    calls_tools: bool = True
    prompt: str | list[int] | None = None
    number: int = 1
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    stream: bool = False
    stream_usage: bool = False
    logprobs: bool = False
    wishes: dict | None = None
    schema: str | None = None
    forced: bool = False
    role: str | None = None

    @property
    def shows_special(self) -> bool:
        """Whether special tokens are part of the reply's text: tools are called by some."""
        return bool(self.tools)

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """Its images in order."""
        return tuple(part["image"] for one in self.messages for part in parts(one) if part["type"] == "image")


@dataclass(frozen=True)
class Choice:
    """A reply as the client sees it. calls: (id, name, arguments as JSON text) of its tool calls."""

    text: str
    calls: list[tuple[str, str, str]]
    finish: str  # stop, length or tool_calls
    tokens: list[int]
    logprobs: list[float]

    @property
    def message(self) -> dict:
        """The assistant message of it."""
        calls = [{"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
                 for id_, name, arguments in self.calls]
        return {"role": "assistant", "content": self.text, **({"tool_calls": calls} if calls else {})}


@dataclass(frozen=True)
class Answer:
    """What a dialect writes a response from. prompt_tokens: of the request; logprobs: (text, log-prob) by choice."""

    id: str
    created: int
    prompt_tokens: int
    choices: list
    logprobs: list[list[tuple[str, float]]]

    @property
    def tokens(self) -> int:
        return sum(len(choice.tokens) for choice in self.choices)


def parts(message: dict) -> list[dict]:
    """A message's content as parts."""
    content = message.get("content") or ""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def plain(message: dict) -> tuple:
    """What two messages with the same meaning have in common, however the client wrote them."""
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    shown = [part["image"].hash if part["type"] == "image" else part["text"].strip() for part in parts(message)]
    return message["role"], shown, meanings(calls), message.get("name")


def meanings(calls: Sequence[tuple]) -> list[tuple]:
    """(name, arguments) of tool calls, comparable."""
    return [(name, arguments_of(arguments)) for *_, name, arguments in calls]


def read(kind: type[Body], body: Any) -> Body:
    """The fields of a body. Raises Refusal, 404 for another model."""
    found = validated(kind, body)
    if found.model != MODEL:
        raise Refusal(404, f"there is no model {found.model[:80]!r}; the model that is trained is '{MODEL}'",
                      "model_not_found")
    return found


def validated(kind: type[Fields], value: Any, place: str = "") -> Fields:
    """A value as the fields of a kind. Raises Refusal. place: of the value in the body."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, (*([place] if place else []), *first["loc"]))) or "the body"
        raise Refusal(400, f"{where}: {first['msg']}", "invalid_request") from error


def texts(content: Any, kinds: Iterable[str] = ("text",)) -> str:
    """The text of a message's content: a text, null, or a list of parts of these kinds."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise Refusal(400, f"content is {type(content).__name__}; needed text or a list of parts", "invalid_request")
    for part in content:
        if not (isinstance(part, dict) and part.get("type") in kinds and isinstance(part.get("text"), str)):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise Refusal(400, f"content has a part {kind!r}; needed texts, or of a user or tool images as data URIs",
                          "unsupported")
    return "".join(part["text"] for part in content)


def contents(content: Any, kinds: Iterable[str] = ("text",)) -> str | list[dict]:
    """`texts` of a message's content; with images its parts {type: text, text} and {type: image, image}, in order."""
    sources = [_source(part) for part in content] if isinstance(content, list) else []
    if not any(sources):
        return texts(content, kinds)
    return [{"type": "image", "image": source} if source else {"type": "text", "text": texts([part], kinds)}
            for part, source in zip(content, sources, strict=True)]


def _source(part: Any) -> str | None:
    """What an image is read from, in the form of any dialect or of Hugging Face; None of another part."""
    if not isinstance(part, dict) or part.get("type") not in ("image", "image_url", "input_image"):
        return None
    given = part.get("image_url") or part.get("source") or part.get("image")
    found = given.get("url") or given.get("data") if isinstance(given, dict) else given
    return found if isinstance(found, str) else None


def constrained(choice: Any, tools: Sequence[dict], form: Any = None, several: bool = True) -> dict[str, Any]:
    """The fields of an Ask that say what the reply must be. Raises Refusal.

    choice: tool_choice of any dialect. form: response_format. several: whether a forced reply may have several calls.
    """
    given = choice if isinstance(choice, dict) else {"type": choice}
    kind, schema = given.get("type"), _schema(form)
    if kind in (None, "auto", "none"):
        if schema and tools and kind != "none":
            raise Refusal(400, "a JSON reply leaves no room for tool calls; needed tool_choice none, or no tools, "
                               "beside a JSON format", "unsupported")
        return {"calls_tools": kind != "none", "schema": schema}
    if kind not in ("required", "any", "function", "tool"):
        raise Refusal(400, f"tool_choice {kind!r} is not supported; needed auto, none, required or one function",
                      "unsupported")
    named = kind in ("function", "tool")
    name = _part(given, "function").get("name") if named else None
    if not tools or (named and name not in [tool["function"]["name"] for tool in tools]):
        raise Refusal(400, f"tool_choice names {name!r}, which is not among the tools" if tools else
                      "tool_choice asks for a call, but there are no tools", "invalid_request")
    return {"schema": _text(calls_schema(tools, name, several)), "forced": True}


def _part(given: dict, name: str) -> dict:
    """The object that chat completions put under a name, and other dialects next to it."""
    return given[name] if isinstance(given.get(name), dict) else given


def _schema(form: Any) -> str | None:
    """The JSON schema of a format of replies, None for text."""
    if form is None:
        return None
    kind = form.get("type") if isinstance(form, dict) else form
    if kind in ("text", "json_object"):
        return None if kind == "text" else _text(ANY_OBJECT)
    schema = _part(form, "json_schema").get("schema") if kind == "json_schema" else None
    if not isinstance(schema, dict):
        raise Refusal(400, f"the format {kind!r} has no schema; needed text, json_object or json_schema with one",
                      "invalid_request")
    return _text(schema)


def _text(schema: dict) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False)
    except RecursionError as error:
        raise Refusal(400, "the JSON schema is nested too deeply", "invalid_request") from error


def event(data: dict | str, name: str | None = None) -> str:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return (f"event: {name}\n" if name else "") + f"data: {text}\n\n"
