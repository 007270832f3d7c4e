"""Answers that go on under newer weights (`explorer.partial_rollout`), and the version that sampled each token.

When newer weights are there, all requests are interrupted and the weights are loaded. Every prompt is then submitted
again with the tokens so far, whose keys and values the new weights compute, and the rest of its answer is sampled.
Where answers are cut depends on time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from operator import itemgetter
from typing import Protocol

from ouroboros.workflows.protocol.engine import INTERRUPTED, WAIT_SECONDS, Engine, Pressure, Reply, Request
from ouroboros.workflows.protocol.kept import Kept
from ouroboros.workflows.protocol.seeds import request_seed


class NewerWeights(Protocol):
    """The weights that an engine may be given during a step. version: of those that it has."""

    version: int

    def are_there(self) -> bool:
        """Whether newer ones may be loaded now."""

    def load(self) -> None:
        """Loads them. No request is in progress."""


@dataclass(slots=True)
class _Asked:
    """A request as it was made, and its reply so far. number: by which the caller knows it."""

    number: int
    request: Request
    reply: Reply


class ContinuedEngine(Engine):
    """The requests to an engine, across a change of its weights; what else an engine does is asked of that itself."""

    def __init__(self, engine: Engine, weights: NewerWeights):
        self._engine, self._weights = engine, weights
        self._asked: dict[int, _Asked] = {}  # by the engine's numbers, which are never used twice
        self._latest: dict[int, int] = {}  # number of a request that was continued -> the engine's

    def submit(self, requests: Sequence[Request]) -> list[int]:
        numbers = self._engine.submit([
            replace(one, follows=self._latest.get(one.follows, one.follows)) for one in requests])
        self._asked |= {number: _Asked(number, request, Reply([], [], INTERRUPTED, []))
                        for number, request in zip(numbers, requests, strict=True)}
        return numbers

    def advance(self, seconds: float = WAIT_SECONDS) -> dict[int, Reply]:
        if self._weights.are_there() and (found := self._renew()):
            return found
        return self._completed(self._engine.advance(seconds))

    def cancel(self, numbers: Iterable[int]) -> None:
        dropped = set(numbers)
        own = [inner for inner, one in self._asked.items() if one.number in dropped]
        self._engine.cancel(own)
        for inner in own:
            del self._asked[inner]

    def pressure(self) -> Pressure | None:
        return self._engine.pressure()

    def _renew(self) -> dict[int, Reply]:
        """Loads the weights, and goes on with what was interrupted; returns replies that were complete before."""
        replies = self._engine.interrupt()
        found = self._completed({n: reply for n, reply in replies.items() if reply.finish_reason != INTERRUPTED})
        for number in self._asked:
            self._extend(number, replies[number])
        unfinished, self._asked = list(self._asked.values()), {}
        self._weights.load()
        numbers = self._engine.submit([continuation(one.request, one.reply.tokens) for one in unfinished])
        self._asked = dict(zip(numbers, unfinished, strict=True))
        self._latest |= {one.number: inner for inner, one in self._asked.items()}
        return found

    def _completed(self, replies: dict[int, Reply]) -> dict[int, Reply]:
        found = {}
        for number, reply in replies.items():
            self._extend(number, reply)
            asked = self._asked.pop(number)
            found[asked.number] = asked.reply
        return found

    def _extend(self, number: int, reply: Reply) -> None:
        """Adds tokens of the present weights to a reply; one that failed has none."""
        asked = self._asked[number]
        if hasattr(reply, "reason"):
            asked.reply = reply
            return
        so_far = asked.reply
        asked.reply = Reply(so_far.tokens + reply.tokens, so_far.logprobs + reply.logprobs, reply.finish_reason,
                            so_far.versions + [self._weights.version] * len(reply.tokens),
                            kept=reply.kept and Kept.joined(filter(None, (so_far.kept, reply.kept))))


def continuation(request: Request, tokens: list[int]) -> Request:
    """The request for the rest of an answer, with its own seed: a function of the request's and the tokens so far.

    tokens: so far; without any the request itself.
    """
    assert request.schema is None, "the state of a mask is not kept"
    if not tokens:
        return replace(request, follows=None)  # no engine has a prefix of it under the new weights
    return replace(
        request, prompt_tokens=[*request.prompt_tokens, *tokens], max_tokens=request.max_tokens - len(tokens),
        seed=request_seed(f"{request.seed}/continued", len(tokens), 0), follows=None)


def sampled_versions(prompt: list[int], response: list[int], calls: Iterable[tuple[list[int], Reply]]
                     ) -> list[int | None]:
    """The version of each response token [R] of a row; None for tokens of no reply, such as an environment's text.

    calls: prompt and reply of every call of the attempt. A token is of a reply if row and call agree up to it; of
    several calls with equal prompts, the one counts that agrees longest.
    """
    return [sampled and sampled[0].versions[sampled[1]] for sampled in origins(prompt, response, calls)]


def origins(prompt: list[int], response: list[int], calls: Iterable[tuple[list[int], Reply]]
            ) -> list[tuple[Reply, int] | None]:
    """The reply that each response token [R] of a row is of, with its place in it; otherwise as `sampled_versions`."""
    row, parts = [*prompt, *response], []
    for asked, reply in calls:
        begin = len(asked)
        if row[:begin] == asked:
            pairs = takewhile(lambda pair: pair[0] == pair[1], zip(row[begin:], reply.tokens, strict=False))
            parts.append((len(list(pairs)), begin, reply))
    found: list[tuple[Reply, int] | None] = [None] * len(row)
    for length, begin, reply in sorted(parts, key=itemgetter(0)):
        found[begin : begin + length] = [(reply, place) for place in range(length)]
    return found[len(prompt):]
