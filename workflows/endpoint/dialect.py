"""What the dialects of the endpoint share: refusals, fields of bodies, server-sent events."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

MODEL = "policy"  # name of the model that is trained
SHIFTS = ("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_p", "top_a")
WISHES = ("temperature", "top_p", "top_k", "seed")


class Refusal(Exception):
    """A request that is not answered. status: of HTTP; code: for programs."""

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


class Body(BaseModel):
    """Fields that a dialect reads. Others are kept, so that those that change the distribution can be refused."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())
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


def read(kind: type[Body], body: Any) -> Body:
    """The fields of a body. Raises Refusal, 404 for another model."""
    try:
        found = kind.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise Refusal(400, f"{where}: {first['msg']}", "invalid_request") from error
    if found.model != MODEL:
        raise Refusal(404, f"there is no model {found.model!r}; the model that is trained is '{MODEL}'",
                      "model_not_found")
    return found


def texts(content: Any, kinds: Iterable[str] = ("text",)) -> str:
    """The text of a message's content: a text, null, or a list of parts of these kinds."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise Refusal(400, f"content is {type(content).__name__}; needed text or a list of parts", "invalid_request")
    for part in content:
        if not (isinstance(part, dict) and part.get("type") in kinds and isinstance(part.get("text"), str)):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise Refusal(400, f"content has a part {kind!r}; the policy reads text alone", "unsupported")
    return "".join(part["text"] for part in content)


def chooses(choice: Any, auto: str = "auto", none: str = "none") -> bool:
    """Whether tool calls are looked for. Raises Refusal for a forced choice, which would mask the distribution."""
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind not in (None, auto, none):
        raise Refusal(400, "a forced tool_choice masks the distribution that is trained; needed auto or none",
                      "unsupported")
    return kind != none


def event(data: dict | str, name: str | None = None) -> str:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return (f"event: {name}\n" if name else "") + f"data: {text}\n\n"
