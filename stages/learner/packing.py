"""Cuts a train batch into packed micro-batches: no padding, a token budget, the same number on every rank.

A *row* is one sequence (prompt then response). Rows are laid end to end in one flat micro-batch of at most
`budget` tokens; attention is kept within rows by `cu_seqlens`. Every rank gets the same number of micro-batches
(ZeRO-2 and 3 communicate in each), an empty-weighted one where the rows do not suffice.
"""

from dataclasses import dataclass

import numpy as np

from operators.aggregation import token_weights
from pipeline.errors import ConfigError


@dataclass(slots=True)
class Row:
    """One sequence to train on.

    tokens: [L] prompt and response token ids; prompt_length: 0 < P < L (the first response token needs a predecessor).
    mask: [R] 1 on action tokens, R = L - P. old_logprobs: [R] under the sampling policy, None for demonstrations.
    advantage: of every action token, or [R] of each token. id: experience id, or task id for demonstrations.
    """

    id: str
    tokens: list[int]
    prompt_length: int
    mask: list[int]
    advantage: float | list[float] = 0.0
    old_logprobs: list[float] | None = None


@dataclass(slots=True)
class MicroBatch:
    """Flat arrays of one packed micro-batch; T tokens, S rows, N action tokens.

    input_ids, positions: [T] int64. cu_seqlens: [S + 1] int32. longest: longest row.
    source: [N] int64, position in T whose output predicts the action token; targets: [N] int64, that token.
    weights, advantages, old_logprobs: [N] float32. row_of: [N] int64, index of the row in the train batch;
    row_in_micro: [N] int64, in this micro-batch, 0 .. S - 1. rows: indices of the batch.
    """

    input_ids: np.ndarray
    positions: np.ndarray
    cu_seqlens: np.ndarray
    longest: int
    source: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    advantages: np.ndarray
    old_logprobs: np.ndarray
    row_of: np.ndarray
    row_in_micro: np.ndarray
    rows: list[int]


def bins(lengths: list[int], budget: int, count_multiple: int) -> list[list[int]]:
    """Distributes row indices over bins of at most `budget` tokens; their number is a multiple of `count_multiple`.

    Longest-first into the emptiest bin (LPT), which keeps the bins nearly equal in tokens. Raises ConfigError when a
    row alone is over the budget.
    """
    if lengths and max(lengths) > budget:
        raise ConfigError(f"a sequence has {max(lengths)} tokens, over trainer.max_token_len_per_gpu={budget}; "
                          "raise that, or lower model.max_prompt_tokens or model.max_response_tokens.")
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    least = -(-max(-(-sum(lengths) // budget), 1) // count_multiple) * count_multiple
    while True:
        loads = [0] * least
        chosen: list[list[int]] = [[] for _ in range(least)]
        for index in order:
            emptiest = loads.index(min(loads))
            chosen[emptiest].append(index)
            loads[emptiest] += lengths[index]
        if max(loads) <= budget:
            return [sorted(c) for c in chosen]
        least += count_multiple


def pack(rows: list[Row], budget: int, rank: int, ranks: int) -> list[MicroBatch]:
    """The micro-batches of one rank. Token weights are those of the mean over all tokens of the batch, all ranks."""
    weights = token_weights("token-mean", np.array([sum(row.mask) for row in rows]))
    assert weights.any(), "a train batch without a single action token"
    assert all(row.prompt_length > 0 for row in rows), "a row without a prompt"
    chosen = bins([len(row.tokens) for row in rows], budget, ranks)
    return [_pack_one(rows, indices, weights) for indices in chosen[rank::ranks]]


def _pack_one(rows: list[Row], indices: list[int], weights: np.ndarray) -> MicroBatch:
    empty = not indices
    indices = indices or [0]  # every rank must run as many forwards: a row of weight 0
    chosen = [rows[i] for i in indices]
    lengths = np.array([len(row.tokens) for row in chosen])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    source, targets, old, advantages, row_of = [], [], [], [], []
    for k, row in enumerate(chosen):
        acts = np.flatnonzero(np.asarray(row.mask)) + row.prompt_length  # positions within the row
        source.append(starts[k] + acts - 1)
        targets.append(np.asarray(row.tokens)[acts])
        logprobs = row.old_logprobs if row.old_logprobs is not None else np.zeros(len(row.mask))
        old.append(np.asarray(logprobs, np.float32)[acts - row.prompt_length])
        every = np.broadcast_to(np.asarray(row.advantage, np.float32), len(row.mask))
        advantages.append(every[acts - row.prompt_length])
        row_of.append(np.full(len(acts), indices[k]))
    row_of = np.concatenate(row_of).astype(np.int64)
    return MicroBatch(
        input_ids=np.concatenate([np.asarray(row.tokens, np.int64) for row in chosen]),
        positions=np.concatenate([np.arange(n) for n in lengths]),
        cu_seqlens=starts.astype(np.int32),
        longest=int(lengths.max()),
        source=np.concatenate(source).astype(np.int64),
        targets=np.concatenate(targets).astype(np.int64),
        weights=np.zeros(len(row_of), np.float32) if empty else weights[row_of].astype(np.float32),
        advantages=np.concatenate(advantages),
        old_logprobs=np.concatenate(old).astype(np.float32),
        row_of=row_of,
        row_in_micro=np.searchsorted(indices, row_of),
        rows=[] if empty else indices,
    )
