"""Sequence parallelism: ranks that hold a part of each micro-batch's tokens each (DeepSpeed Ulysses, arXiv:2309.14509).

Everything but attention is computed token by token, so each of S ranks runs the model over T / S tokens of the same
micro-batch. Around our attention DeepSpeed's UlyssesSPAttentionHF exchanges them: before it each rank has all T tokens
with 1 / S of the heads, after it all heads of its own tokens. The output head scores a rank's own positions; the
numbers of all of them are then on every rank, so that a loss may compare any tokens, and each rank's gradient is that
of its own positions: summed over ranks, as data-parallel ones, they are the gradient of the loss.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ouroboros.pipeline.store.errors import ModelError
from ouroboros.pipeline.store.model_shape import divides_heads
from ouroboros.stages.learner.engine.sharing import Segments


@dataclass(frozen=True)
class Part:
    """The positions of a micro-batch that this rank scores. own: which of the N asked ones [n]; places: where they are
    among its own hidden states [n]."""

    sequence: "Sequence"
    own: Tensor
    places: Tensor
    total: int

    def whole(self, values: Tensor) -> Tensor:
        """Values at the own positions [n, ...] -> those at all [N, ...], on every rank."""
        return _Joined.apply(values, self.own, self.total, self.sequence.group)


@dataclass(frozen=True)
class Whole:
    """As `Part`, of a rank that has all tokens."""

    places: Tensor
    own = slice(None)

    def whole(self, values: Tensor) -> Tensor:
        return values


class _Joined(torch.autograd.Function):
    """Values of all ranks. The loss over them is computed on each rank alike, so no gradient is exchanged."""

    @staticmethod
    def forward(ctx, values: Tensor, own: Tensor, total: int, group) -> Tensor:
        ctx.save_for_backward(own)
        joined = values.new_zeros(total, *values.shape[1:])
        joined[own] = values
        torch.distributed.all_reduce(joined, group=group)
        return joined

    @staticmethod
    def backward(ctx, grad: Tensor):
        (own,) = ctx.saved_tensors
        return grad[own], None, None, None


@dataclass(frozen=True)
class Sequence:
    """The ranks that share a micro-batch: `size` of them, of which this is number `place`."""

    group: Any
    size: int
    place: int
    exchanges: dict[tuple[int, int, int], nn.Module] = field(default_factory=dict)  # by heads, key/value heads, width

    @classmethod
    def start(cls, size: int, rank: int, ranks: int) -> "Sequence | None":
        """The group of this rank, neighbours of it; None where each rank has whole sequences. Collective."""
        if size == 1 or ranks == 1:
            return None
        groups = [torch.distributed.new_group(list(range(first, first + size))) for first in range(0, ranks, size)]
        return cls(groups[rank // size], size, rank % size)

    def pad(self, input_ids: Tensor, positions: Tensor, segments: Segments) -> tuple[Tensor, Tensor, Segments]:
        """A flat micro-batch with a segment behind it, so that each rank has equally many tokens."""
        if not (missing := -len(input_ids) % self.size):
            return input_ids, positions, segments
        behind = torch.arange(missing, device=positions.device)
        return torch.cat([input_ids, torch.zeros_like(behind)]), torch.cat([positions, behind]), Segments(
            np.append(segments.bounds, segments.bounds[-1] + np.int32(missing)), np.append(segments.contexts, -1))

    def own(self, values: Tensor) -> Tensor:
        """The tokens of this rank. values: of a padded micro-batch [T, ...]."""
        return values.chunk(self.size)[self.place]

    def part(self, source: Tensor, tokens: int) -> Part:
        """source: flat positions [N] in a micro-batch of `tokens`."""
        each = -(-tokens // self.size)
        own = torch.nonzero(source // each == self.place)[:, 0]
        return Part(self, own, source[own] - each * self.place, len(source))

    def joined(self, values: Tensor) -> Tensor:
        """The values of all ranks' tokens, padding included. values: of this rank's [T / size, ...]."""
        parts = [torch.empty_like(values) for _ in range(self.size)]
        torch.distributed.all_gather(parts, values.contiguous(), group=self.group)
        return torch.cat(parts)

    def attend(self, attention, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask, *arguments,
               s_aux: Tensor | None = None, **named) -> tuple[Tensor, None]:
        """attention(module, query, ...) over all tokens with the heads of this rank. query: [1, H, T / size, D]."""
        if s_aux is not None:
            named["s_aux"] = s_aux.chunk(self.size)[self.place]
        exchange = self._exchange(query, key, value)
        exchange.attn = attention
        place = torch.zeros(1, 1, dtype=torch.int64, device=query.device)  # it gathers positions, which ours has not
        out, _ = exchange(module, query, key, value, mask, *arguments, **named | {"position_ids": place})
        return out.unflatten(-1, (query.shape[1], query.shape[-1])), None

    def _exchange(self, query: Tensor, key: Tensor, value: Tensor) -> nn.Module:
        from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

        shape = heads, key_heads, width = query.shape[1], key.shape[1], query.shape[-1]
        if value.shape != key.shape or not divides_heads(self.size, heads, key_heads):
            raise ModelError(f"trainer.ulysses_sequence_parallel_size={self.size}: a layer has {heads} query heads "
                             f"of {width} entries and {value.shape[1]} value heads of {value.shape[-1]}; needed heads "
                             "that are split evenly, with keys and values of one width. Set it to 1.")
        if shape not in self.exchanges:
            self.exchanges[shape] = UlyssesSPAttentionHF(
                attn=None, batch_size=1, attn_head_count=heads, attn_head_size=width, kv_head_count=key_heads,
                num_hidden_layers=1, process_group=self.group, seq_length_is_variable=True)
        return self.exchanges[shape]
