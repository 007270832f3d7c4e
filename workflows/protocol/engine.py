"""The interface of rollout engines (token ids in, token ids and log-probs out).

A request contains everything that determines its answer, including the seed, so the same request to the same weights
gives the same answer however requests are batched. Requests may be submitted and cancelled while others are computed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np

from ouroboros.pipeline.store.pictures import Picture
from ouroboros.workflows.protocol.kept import Kept

WAIT_SECONDS = 0.2
LIKELIEST = 20  # tokens with their log-probs of `likeliest`
DEAD_END = "no token of the model continues the reply as its JSON schema demands"
STOP_TEXT = "stop_text"  # finish_reason of a reply that a text of `Stop` ended; vLLM's and OpenAI's word is stop
INTERRUPTED = "abort"  # finish_reason of a reply that was not completed; vLLM's word
VALUE, ERROR, REPLIES, PRESSURE = "value", "error", "replies", "pressure"  # kinds of messages from an engine's process


@dataclass(slots=True, frozen=True)
class Stop:
    """Texts that end a reply: its last token completes one of them. special: whether special tokens are text too."""

    texts: tuple[str, ...]
    special: bool


@dataclass(slots=True, frozen=True)
class Request:
    """One completion to sample. temperature 0 = greedy; top_p 1, top_k -1 and min_p 0 = off; seed: below 2**63.

    follows: number of an earlier request whose prompt this one probably continues, so that a pool sends it to the
    engine with that prefix in its cache. schema: JSON schema that the text of the reply satisfies, unless max_tokens
    cuts it off: other tokens are masked. None: any text; only such replies may be trained on. stop: None: no text ends
    the reply, and the engine makes none of its tokens. keeps: whether the reply says what each token was sampled among;
    top_k is above 0 then. pictures: of the prompt, whose tokens are in it (workflows/protocol/sight.py).
    """

    prompt_tokens: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    follows: int | None = None
    schema: str | None = None
    stop: Stop | None = None
    min_p: float = 0.0
    keeps: bool = False
    pictures: tuple[Picture, ...] = ()


@dataclass(slots=True)
class Reply:
    """tokens [R]; logprobs [R] under the sampling distribution; finish_reason: stop, length or STOP_TEXT.

    versions: of the weights that sampled each token [R]; None without explorer.partial_rollout. experts: those that the
    position before each token went to [R, layers, choices], 0 in layers without experts; None where they are not kept.
    kept: what each token was sampled among [R]; None where the request does not ask for it.
    """

    tokens: list[int]
    logprobs: list[float]
    finish_reason: str
    versions: list[int] | None = None
    experts: np.ndarray | None = None
    kept: Kept | None = None


class Failed(Reply):
    """A reply that did not come. reason: why."""

    def __init__(self, reason: str):
        super().__init__([], [], "stop")
        self.reason = reason


@dataclass(slots=True, frozen=True)
class Pressure:
    """How full the key/value cache is. usage: share in use, 0 to 1; preemptions: of requests, since the start."""

    usage: float
    preemptions: int


class Engine(Protocol):
    """A model that answers requests. `version` names engine and release, for the provenance of rows; `started` has the
    seconds that its start took, by part."""

    version: str
    started: Mapping[str, float] = MappingProxyType({})
    number: int = 1  # of engines behind the interface

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """Adds requests to those in progress; returns a number for each, unique to this engine."""

    def advance(self, seconds: float = WAIT_SECONDS) -> dict[int, Reply]:
        """Computes one step of the requests in progress; returns those that it completed, by number.

        seconds: how long an engine in another process is waited for.
        """

    def cancel(self, numbers: Iterable[int]) -> None:
        """Removes requests in progress; their numbers do not appear again."""

    def interrupt(self) -> dict[int, Reply]:
        """Removes all requests in progress; returns their replies so far, by number.

        finish_reason is INTERRUPTED, or that of a reply which was completed meanwhile.
        """

    def pressure(self) -> Pressure | None:
        """The key/value cache as of the last steps; None where it is not known. Requests may be in progress."""
        return None

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Answers all requests, in order; no others may be in progress."""
        numbers, found = self.submit(requests), {}
        while len(found) < len(numbers):
            found |= self.advance()
        return [found[number] for number in numbers]

    def score(self, sequences: Sequence[list[int]]) -> list[list[float]]:
        """Log-prob of every token after the first, [L - 1] each, at temperature 1."""

    def prompt_logprobs(self, sequences: Sequence[list[int]], count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """As `score`, of each sequence: ids and log-probs of every token after the first, and behind it of the `count`
        likeliest at its place [L - 1, count + 1], int32 and float32."""

    def probe(self, sequence: list[int], pictures: tuple[Picture, ...] = ()) -> list[list[float]]:
        """`score` of one sequence by every underlying engine, so that a weight check covers all of them. pictures: in
        it."""

    def likeliest(self, sequence: list[int], temperature: float, pictures: tuple[Picture, ...] = ()
                  ) -> list[dict[int, float]]:
        """Log-probs of the likeliest tokens after a sequence, by every underlying engine: those that replies sampled at
        this temperature have, which an engine may compute in another way than `score`'s."""

    def load_weights(self, directory: Path) -> None:
        """Loads the weights of a published version, or of a model directory, and clears all caches.

        An engine opened for an adapter replaces only the adapter; `directory` then has peft's format.
        """

    def sleep(self) -> None:
        """Frees device memory; weights are lost, so `load_weights` must follow `wake`."""

    def wake(self) -> None:
        """Reallocates device memory."""

    def close(self) -> None:
        """Ends the engine and every process it started."""


class BatchEngine(Engine):
    """An engine that answers up to `batch` of its requests at a time, in order of arrival."""

    batch = 64

    def __init__(self):
        self._waiting: dict[int, Request] = {}
        self._numbers = count()

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        """Answers at most `batch` requests, in order."""

    def submit(self, requests: Sequence[Request]) -> list[int]:
        numbers = [next(self._numbers) for _ in requests]
        self._waiting.update(zip(numbers, requests, strict=True))
        return numbers

    def advance(self, seconds: float = WAIT_SECONDS) -> dict[int, Reply]:
        numbers = list(islice(self._waiting, self.batch))
        requests = [self._waiting.pop(number) for number in numbers]
        return dict(zip(numbers, self.answer(requests), strict=True)) if requests else {}

    def cancel(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._waiting.pop(number, None)

    def interrupt(self) -> dict[int, Reply]:
        """Of requests that are not answered yet: no reply is in progress between two batches."""
        waiting, self._waiting = self._waiting, {}
        return {number: Reply([], [], INTERRUPTED) for number in waiting}
