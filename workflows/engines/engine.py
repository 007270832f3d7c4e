"""What a rollout engine is: token ids in, token ids and log-probs out. And the table of engines.

A request carries everything that decides its answer, the seed included, so the same request to the same weights gives
the same answer however requests are batched.
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
    """tokens [R]; logprobs [R] of those tokens under the sampling distribution; finish_reason: stop or length."""

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
        """What `score` says of one sequence, by every engine that answers requests: whoever proves, proves all."""

    def load_weights(self, directory: Path) -> None:
        """Replaces the weights by those of `directory`/model.safetensors and forgets everything cached.

        An engine that was opened for an adapter replaces that, and leaves the model as it is: the directory is one of
        peft's.
        """

    def sleep(self) -> None:
        """Frees the device's memory; weights are lost, `load_weights` must follow `wake`."""

    def wake(self) -> None:
        """Takes memory again."""

    def close(self) -> None:
        """Ends the engine and every process it started."""
