"""The interface of rollout engines (token ids in, token ids and log-probs out).

A request contains everything that determines its answer, including the seed, so the same request to the same weights
gives the same answer however requests are batched.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(slots=True, frozen=True)
class Request:
    """One completion to sample. temperature 0 = greedy; top_p 1 and top_k -1 = off; seed: below 2**63."""

    prompt_tokens: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int


@dataclass(slots=True)
class Reply:
    """tokens [R]; logprobs [R] under the sampling distribution; finish_reason: stop or length."""

    tokens: list[int]
    logprobs: list[float]
    finish_reason: str


class Engine(Protocol):
    """A model that answers requests. `version` names engine and release, for the provenance of rows."""

    version: str

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Answers all requests, in order."""

    def score(self, sequences: Sequence[list[int]]) -> list[list[float]]:
        """Log-prob of every token after the first, [L - 1] each, at temperature 1."""

    def probe(self, sequence: list[int]) -> list[list[float]]:
        """`score` of one sequence by every underlying engine, so that a weight check covers all of them."""

    def load_weights(self, directory: Path) -> None:
        """Loads the weights in `directory`/model.safetensors and clears all caches.

        An engine opened for an adapter replaces only the adapter; `directory` then has peft's format.
        """

    def sleep(self) -> None:
        """Frees device memory; weights are lost, so `load_weights` must follow `wake`."""

    def wake(self) -> None:
        """Reallocates device memory."""

    def close(self) -> None:
        """Ends the engine and every process it started."""
