"""Truncated sampling in vLLM by code of ours, which keeps what each token was sampled among.

It cuts behind the temperature, where vLLM makes its own cut, so that vLLM's is left off for these requests and its
log-probs are of the truncated distribution. The second model runner has `truncate_in` in its sampler; the first one has
the logits processor `TruncatedSampling`, and draws token by token from requests' generators.
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
Bounds = tuple[int, float, float]  # top_k, top_p, min_p


class _Step:
    """What stayed in one step, on its way to host memory. ids: [B, K], the likeliest first; counts: [B]; positions: [B]
    of the sampled tokens in their sequences."""

    def __init__(self, ids: torch.Tensor, counts: torch.Tensor, positions: torch.Tensor):
        cut = torch.arange(ids.shape[1], device=ids.device) >= counts[:, None]
        ascending = ids.masked_fill(cut, LAST).sort(-1).values  # here, not token by token on the host
        held, self._event = torch.cat([counts[:, None], positions[:, None], ascending], 1).int(), None
        if held.is_cuda:
            held = torch.empty(held.shape, dtype=held.dtype, pin_memory=True).copy_(held, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        self._rows = held.numpy()

    @property
    def rows(self) -> np.ndarray:
        """[B, 2 + K]: how many ids stayed of a request, the position of its token, and these."""
        if self._event:
            self._event.synchronize()
            self._event = None
        return self._rows


class Sets:
    """What the tokens of requests in progress were sampled among, until `take` or `drop`. Requests have keys of ours,
    as vLLM's first model runner hands processors no name."""

    def __init__(self):
        self._kept: dict[int, list[tuple[_Step, int]]] = {}  # key -> its steps, and its line in each
        self._lines: list[int] = []
        self._asked: list[tuple[int, Bounds]] = []

    def truncated(self, logits: torch.Tensor, asked: dict[int, tuple[int, Bounds]], positions) -> torch.Tensor:
        """Cuts lines of logits [B, V]. asked: of lines, in order: key and bounds. positions: [B]."""
        if not asked:
            return logits
        if self._lines != [*asked] or self._asked != [*asked.values()]:  # else what is on the device is of use again
            self._lines, self._asked = [*asked], [*asked.values()]
            self._index = torch.tensor(self._lines, device=logits.device)
            columns = zip(*(bounds for _, bounds in self._asked), strict=True)
            self._bounds = [torch.tensor(column, device=logits.device) for column in columns]
        whole = self._lines == [*range(len(logits))]
        own = logits if whole else logits[self._index]
        ids, counts = kept_of(own, max(bounds[0] for _, bounds in self._asked), *self._bounds)
        step = _Step(ids, counts, positions[self._index])
        for line, (key, _) in enumerate(self._asked):
            self._kept.setdefault(key, []).append((step, line))
        if whole:
            return truncate(own, ids, counts)
        logits[self._index] = truncate(own, ids, counts)
        return logits

    def take(self, wanted: Sequence[tuple[int, int, int]]) -> list[Kept | None]:
        """What requests that ended were sampled among: (key, tokens of the prompt, of the reply) each; None where some
        is missing."""
        return [self._taken(self._kept.pop(key, []), first, tokens) for key, first, tokens in wanted]

    def drop(self, keys: Sequence[int]) -> None:
        """Forgets requests that were cancelled."""
        for key in keys:
            self._kept.pop(key, None)

    @staticmethod
    def _taken(steps: list[tuple[_Step, int]], first: int, tokens: int) -> Kept | None:
        rows = [step.rows[line] for step, line in steps]
        found = dict(zip([int(row[1]) for row in rows], rows, strict=True))  # of a token sampled again, the last
        chosen = [found.get(place) for place in range(first, first + tokens)]
        return None if any(row is None for row in chosen) else Kept.of([row[2 : 2 + row[0]] for row in chosen])


def truncate_in(sampler) -> Sets:
    """Lets a sampler of vLLM's second model runner cut the distributions of requests that ask for it.

    Overrides what takes requests, `add_request(slot, …, sampling_params)`, and what is between the temperature and
    vLLM's own cut, `apply_sampling_params(logits, …)`.
    """
    sets, asked = Sets(), dict[int, tuple[int, Bounds] | None]()  # asked: by slots of the runner

    class TruncatingSampler(type(sampler)):
        def add_request(self, slot, *others):
            super().add_request(slot, *others)
            key, *bounds = (others[-1].extra_args or {}).get(ASKED, (None,))
            asked[slot] = None if key is None else (key, tuple(bounds))

        def __call__(self, logits, input_batch):
            self.batch = input_batch
            return super().__call__(logits, input_batch)

        def apply_sampling_params(self, *arguments, **named):
            logits, batch = super().apply_sampling_params(*arguments, **named), self.batch
            lines = {line: asked[slot] for line, slot in enumerate(batch.idx_mapping_np.tolist()) if asked.get(slot)}
            return sets.truncated(logits, lines, batch.positions[batch.logits_indices] + 1)

    sampler.__class__ = TruncatingSampler
    return sets


@dataclass(slots=True)
class _Request:
    """A request in the first runner's batch. tokens: of its reply so far, which vLLM extends."""

    asked: tuple[int, Bounds]
    prompt: int
    tokens: list[int]


class TruncatedSampling(LogitsProcessor):
    """Truncates the distributions of requests that ask for it."""

    def __init__(self, vllm_config, device: torch.device, is_pin_memory: bool):
        self._requests: dict[int, _Request] = {}  # by their places in the batch
        self.sets = Sets()

    def is_argmax_invariant(self) -> bool:
        """The likeliest token stays."""
        return True

    def update_state(self, batch_update) -> None:
        process_dict_updates(self._requests, batch_update, self._asked)

    @staticmethod
    def _asked(parameters, prompt: list[int], tokens: list[int]) -> _Request | None:
        key, *bounds = (parameters.extra_args or {}).get(ASKED, (None,))
        return None if key is None else _Request((key, tuple(bounds)), len(prompt), tokens)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        positions = torch.zeros(len(logits), dtype=torch.int32)
        for line, one in self._requests.items():
            positions[line] = one.prompt + len(one.tokens)
        asked = {line: one.asked for line, one in self._requests.items()}
        return self.sets.truncated(logits, asked, positions.to(logits.device))
