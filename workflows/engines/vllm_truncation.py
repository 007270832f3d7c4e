"""Truncated sampling in vLLM by a logits processor of ours, which keeps what each token was sampled among.

vLLM applies it behind the temperature, where it makes its own cut, so that its own is left off for these requests and
its log-probs are of the truncated distribution. Only vLLM's first model runner calls processors there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from ouroboros.workflows.engines.vllm_engine import ASKED
from ouroboros.workflows.protocol.kept import Kept, kept_of, truncate

LAST = 2**31 - 1  # behind every id


@dataclass(slots=True)
class _Request:
    """A request in the batch. key: ours, unique; tokens: of its reply so far, which vLLM extends."""

    key: int
    top_k: int
    top_p: float
    min_p: float
    tokens: list[int]


class _Step:
    """What stayed in one step, on its way to host memory. ids: [B, K], the likeliest first; counts: [B]."""

    def __init__(self, ids: torch.Tensor, counts: torch.Tensor):
        cut = torch.arange(ids.shape[1], device=ids.device) >= counts[:, None]
        ascending = ids.masked_fill(cut, LAST).sort(-1).values  # here, not token by token on the host
        self._held, self._event = [self._to_host(ascending.int()), self._to_host(counts.int())], None
        if ids.is_cuda:
            self._event = torch.cuda.Event()
            self._event.record()

    @staticmethod
    def _to_host(values: torch.Tensor) -> torch.Tensor:
        if not values.is_cuda:
            return values
        return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)

    def of(self, line: int) -> np.ndarray:
        if self._event:
            self._event.synchronize()
            self._event = None
        ids, counts = self._held
        return ids[line, : int(counts[line])].numpy()


class TruncatedSampling(LogitsProcessor):
    """Truncates the distributions of requests that ask for it, and keeps what stayed until `take` or `drop`."""

    def __init__(self, vllm_config, device: torch.device, is_pin_memory: bool):
        self._device = device
        self._requests: dict[int, _Request] = {}  # by their places in the batch
        self._kept: dict[int, dict[int, tuple[_Step, int]]] = {}  # key -> place in the reply -> step, line in it
        self._lines = self._bounds = self._most = None

    def is_argmax_invariant(self) -> bool:
        """The likeliest token stays."""
        return True

    def update_state(self, batch_update) -> None:
        if process_dict_updates(self._requests, batch_update, self._asked):
            self._lines = None

    @staticmethod
    def _asked(parameters, _, tokens: list[int]) -> _Request | None:
        asked = (parameters.extra_args or {}).get(ASKED)
        return asked and _Request(*asked, tokens)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if not self._requests:
            return logits
        if self._lines is None:
            self._lines = torch.tensor(list(self._requests), device=self._device)
            columns = zip(*((one.top_k, one.top_p, one.min_p) for one in self._requests.values()), strict=True)
            self._bounds = [torch.tensor(column, device=self._device) for column in columns]
            self._most = max(one.top_k for one in self._requests.values())
        own = logits[self._lines]
        ids, counts = kept_of(own, self._most, *self._bounds)
        logits[self._lines] = truncate(own, ids, counts)
        step = _Step(ids, counts)
        for line, one in enumerate(self._requests.values()):  # of a prompt that is prefilled in parts the last counts
            self._kept.setdefault(one.key, {})[len(one.tokens)] = step, line
        return logits

    def take(self, wanted: Sequence[tuple[int, int]]) -> list[Kept | None]:
        """What requests that ended were sampled among: (key, tokens of the reply) each; None where some is missing."""
        held = [(self._kept.pop(key, {}), tokens) for key, tokens in wanted]
        return [Kept.of([its[place][0].of(its[place][1]) for place in range(tokens)])
                if all(place in its for place in range(tokens)) else None for its, tokens in held]

    def drop(self, keys: Sequence[int]) -> None:
        """Forgets requests that were cancelled."""
        for key in keys:
            self._kept.pop(key, None)
