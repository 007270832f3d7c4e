"""Packs a train batch into micro-batches: a token budget, equally many on every rank.

Rows are concatenated into flat micro-batches of at most `budget` tokens, and as many action tokens (rows may
share them); `segments` keep attention within rows. Where a model pads them (way.py), rows of similar lengths are
together, and the budget is of padded tokens.
Every rank gets the same number of micro-batches (ZeRO-2 and 3 communicate in each), with weight-zero ones as filler.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ouroboros.operators.aggregation import token_weights_by_kind
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.prefixes import MEASURED, NOTHING, Cost
from ouroboros.stages.learner.engine.sharing import Prefixes, Segments
from ouroboros.workflows.protocol.kept import Kept
from ouroboros.workflows.protocol.sight import Shown


class Fill(Enum):
    """What a micro-batch is filled with: rows one behind the other, sharing every common prefix, sharing those that
    make it cheapest, the same for an attention that gathers each row whole, rows padded to the longest of them, or a
    single row (or unit of rows, each padded)."""

    FLAT = "flat"
    SHARED = "shared"
    CHEAPEST = "cheapest"
    GATHERED = "gathered"
    PADDED = "padded"
    SINGLE = "single"

    @property
    def pads(self) -> bool:
        return self in (Fill.PADDED, Fill.SINGLE)

    @property
    def cost(self) -> Cost | None:
        """Of continuing a shared prefix (prefixes.py); None: none is shared."""
        return {Fill.SHARED: NOTHING, Fill.CHEAPEST: MEASURED, Fill.GATHERED: MEASURED}.get(self)


@dataclass(frozen=True)
class Aggregation:
    """How a batch's tokens are averaged (operators/aggregation.py), and how many rows stay together.

    normalizer: only for seq-mean-token-sum-norm. unit: 2 for pairs of rows that one loss compares, otherwise 1.
    by_kind: rollouts and demonstrations (column is_expert) are averaged separately, and the means added. own: an
    algorithm's weights of rows by counts and kinds, in place of the mode's.
    """

    mode: str = "token-mean"
    normalizer: float | None = None
    unit: int = 1
    by_kind: bool = False
    own: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = field(default=None, compare=False)

    def weights(self, rows: Sequence[Row], counts: np.ndarray) -> np.ndarray:
        """Loss weight of each action token of row r, [R]. counts: action tokens of each row."""
        own = self.own or (lambda *given: token_weights_by_kind(self.mode, *given, self.normalizer))
        return own(counts, self._kinds(rows))

    def shares(self, rows: Sequence[Row], counts: np.ndarray) -> np.ndarray:
        """Weight of each action token of row r in the mean over all tokens of its kind, [R]."""
        return token_weights_by_kind("token-mean", counts, self._kinds(rows))

    def _kinds(self, rows: Sequence[Row]) -> np.ndarray:
        return np.array([self.by_kind and bool(row.columns["is_expert"]) for row in rows], bool)


@dataclass(slots=True)
class MicroBatch:
    """Flat arrays of one packed micro-batch; T tokens, S rows, N action tokens.

    input_ids, positions: [T] int64.
    source: [N] int64, position in T whose output predicts the action token; targets: [N] int64, that token.
    weights: [N] float32, for the loss; shares: [N] float32, for the mean over tokens of its kind (all ranks); share:
    for the mean over all tokens.
    columns: name -> [N] float32. row_of: [N] int64, index of the row in the train batch; row_in_micro: [N] int64, in
    this micro-batch, 0 .. S - 1. rows: indices into the batch. experts: those of the engine at `source` [N, layers,
    choices] int64, or None. temperature: [N] float32, 0 where it is that of the model; None: it is throughout. kept:
    ids of what each token was sampled among [N, K] int32, -1 behind the last; all -1: the whole vocabulary; None: it is
    throughout. pictures: where each prompt with images begins in T, in order, and these.
    """

    input_ids: np.ndarray
    positions: np.ndarray
    segments: Segments
    source: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    shares: np.ndarray
    share: float
    columns: dict[str, np.ndarray]
    row_of: np.ndarray
    row_in_micro: np.ndarray
    rows: list[int]
    experts: np.ndarray | None = None
    temperature: np.ndarray | None = None
    kept: np.ndarray | None = None
    pictures: Shown = ()

    def inputs(self, device: torch.device) -> dict[str, Any]:
        """The arguments of a model's forward, on its device."""
        more = [name for name in ("experts", "temperature", "kept") if getattr(self, name) is not None]
        arrays = ("input_ids", "positions", "source", "targets", *more)
        on_device = {name: torch.from_numpy(getattr(self, name)).to(device, non_blocking=True) for name in arrays}
        return {"segments": self.segments, **on_device, **({"pictures": self.pictures} if self.pictures else {})}

    def by_row(self, values: Tensor) -> dict[int, np.ndarray]:
        """Splits values of the action tokens [N] by the row's index in the train batch; without filler."""
        flat = values.detach().float().cpu().numpy()
        return {row: flat[self.row_of == row] for row in self.rows}


def bins(lengths: list[int], budget: int, count_multiple: int, what: str = "sequence") -> list[list[int]]:
    """Distributes row indices over bins of at most `budget` tokens, a multiple of `count_multiple` bins.

    Longest-first into the emptiest bin (LPT), which keeps the bins nearly equal in tokens. Raises ConfigError when a
    single row is over the budget. what: name of a row in messages.
    """
    _refuse_longest(lengths, budget, what)
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


def _refuse_longest(lengths: list[int], budget: int, what: str) -> None:
    if lengths and max(lengths) > budget:
        raise ConfigError(f"a {what} has {max(lengths)} tokens, and a micro-batch takes {budget}: raise "
                          "trainer.max_token_len_per_gpu, or lower model.max_prompt_tokens or "
                          "model.max_response_tokens.")


def by_length(lengths: list[int], budget: int, count_multiple: int, single: bool, what: str) -> list[list[int]]:
    """As `bins`, for members that are padded to the longest of a bin. lengths: of each with its padding when alone.

    single: at most one member in a bin.
    """
    _refuse_longest(lengths, budget, what)
    chosen: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if chosen and not single and (len(chosen[-1]) + 1) * lengths[chosen[-1][0]] <= budget:
            chosen[-1].append(index)
        else:
            chosen.append([index])
    while len(chosen) % count_multiple:
        largest = max(chosen, key=len)
        half = len(largest) // 2
        chosen.append(largest[len(largest) - half :])
        del largest[len(largest) - half :]
    return sorted((sorted(members) for members in chosen), key=lambda members: -len(members) * max(
        (lengths[i] for i in members), default=0))


def lengths(rows: Sequence[Row], unit: int = 1, padded: bool = False) -> list[int]:
    """Tokens of each row, or of each `unit` rows that stay together. padded: with their padding."""
    units = [[len(row.tokens) for row in rows[i : i + unit]] for i in range(0, len(rows), unit)]
    return [len(one) * max(one) if padded else sum(one) for one in units]


def pack(
    rows: list[Row], budget: int, rank: int, ranks: int, columns: Sequence[str] = (),
    aggregation: Aggregation = Aggregation(), fill: Fill = Fill.FLAT, experts: bool = False
) -> list[MicroBatch]:
    """The micro-batches of one rank, with the named columns. Weights refer to the whole batch. experts: with those of
    the engine, if it said them of every token that is trained on.

    Of rows that share prefixes (sharing.py), as many are together as makes the busiest rank's tokens fewest.
    """
    counts, unit = np.array([sum(row.mask) for row in rows]), aggregation.unit
    weights, shares = aggregation.weights(rows, counts), aggregation.shares(rows, counts)
    assert weights.any(), "a train batch without a single action token"
    assert all(row.prompt_length > 0 for row in rows), "a row without a prompt"
    assert len(rows) % unit == 0, f"{len(rows)} rows are no whole number of {unit}"
    prefixes = Prefixes(rows, fill.cost)
    if fill.pads:
        chosen = _padded(rows, budget, ranks, unit, fill is Fill.SINGLE)
    else:
        chosen = min(_distributed(prefixes, counts, budget, ranks, unit, fill is Fill.GATHERED),
                     key=lambda bins: _busiest(prefixes, bins, ranks))
    share_of_token = 1.0 / int(counts.sum())
    experts = experts and routed(rows)
    return [_pack_one(prefixes, indices, (weights, shares), share_of_token, columns, unit, experts)
            for indices in chosen[rank::ranks]]


def routed(rows: Sequence[Row]) -> bool:
    """Whether the engine said the experts of every token that is trained on."""
    return all(row.experts is not None or not any(row.mask) for row in rows)


def _what(unit: int) -> str:
    return "sequence" if unit == 1 else "pair of sequences"


def _padded(rows: list[Row], budget: int, ranks: int, unit: int, single: bool) -> list[list[int]]:
    """Row indices of the micro-batches of all ranks, for rows that are padded."""
    units = by_length(lengths(rows, unit, padded=True), budget, ranks, single, _what(unit))
    return [[place * unit + i for place in places for i in range(unit)] for places in units]


def _distributed(prefixes: Prefixes, counts: np.ndarray, budget: int, ranks: int, unit: int,
                 gathers: bool) -> Iterator[list[list[int]]]:
    """Row indices of the micro-batches of all ranks, for each way to keep rows of a tree together that fits.

    counts: action tokens of each row [R]. The output head has a position for each, also where rows share it, so they
    are within the budget too. gathers: attention gathers each row whole in four of ten tensors that a layer keeps,
    so two fifths of a micro-batch are counted without sharing (rows that it pads are not).
    """
    number_of = counts.tolist()  # most parts are a row or two, of which numpy adds slower than Python
    for number, way in enumerate(prefixes.parts(unit)):
        tokens, scored = [prefixes.count(part) for part in way], [sum(number_of[i] for i in part) for part in way]
        if gathers:
            tokens = [(3 * one + 2 * int(prefixes.lengths[part].sum())) // 5
                      for one, part in zip(tokens, way, strict=True)]
        if number == 0 or max(*tokens, *scored) <= budget:
            sizes = [max(one, min(other, budget)) for one, other in zip(tokens, scored, strict=True)]
            chosen = bins(sizes, budget, ranks, _what(unit))
            yield [sorted(i for place in places for i in way[place]) for places in chosen]


def _busiest(prefixes: Prefixes, chosen: list[list[int]], ranks: int) -> int:
    """Tokens of the rank that has most of them."""
    loads = [prefixes.count(indices) for indices in chosen]
    return max(sum(loads[rank::ranks]) for rank in range(ranks))


def _experts(rows: Sequence[Row]) -> np.ndarray | None:
    said = [row.experts for row in rows if row.experts is not None]
    return np.concatenate(said).astype(np.int64) if said else None


def _pack_one(
    prefixes: Prefixes, indices: list[int], of_rows: tuple[np.ndarray, np.ndarray], share: float,
    columns: Sequence[str], unit: int, experts: bool
) -> MicroBatch:
    """of_rows: token weights and shares of each row of the batch, [R]."""
    empty = not indices
    indices = indices or list(range(unit))  # filler with weight 0: every rank must run the same number of forwards
    chosen = [prefixes.rows[i] for i in indices]
    flat = prefixes.flatten(indices)
    source, targets, row_of = [], [], []
    for k, row in enumerate(chosen):
        acts = np.flatnonzero(np.asarray(row.mask))
        source.append(flat.places[k][row.prompt_length + acts - 1])
        targets.append(np.asarray(row.tokens)[row.prompt_length + acts])
        row_of.append(np.full(len(acts), indices[k]))
    row_of = np.concatenate(row_of).astype(np.int64)
    weights, shares = (np.zeros(len(row_of), np.float32) if empty else values[row_of].astype(np.float32)
                       for values in of_rows)
    return MicroBatch(
        input_ids=flat.input_ids,
        positions=flat.positions,
        segments=flat.segments,
        source=np.concatenate(source).astype(np.int64),
        targets=np.concatenate(targets).astype(np.int64),
        weights=weights,
        shares=shares,
        share=0.0 if empty else share,
        columns={name: np.concatenate([row.of_actions(name) for row in chosen]) for name in columns},
        row_of=row_of,
        row_in_micro=np.searchsorted(indices, row_of),
        rows=[] if empty else indices,
        experts=_experts(chosen) if experts else None,
        temperature=_temperatures(chosen),
        kept=_kept(chosen),
        pictures=sorted({(int(places[0]), row.pictures) for places, row in zip(flat.places, chosen, strict=True)
                         if row.pictures}),
    )


def _kept(rows: Sequence[Row]) -> np.ndarray | None:
    if all(row.kept is None for row in rows):
        return None
    whole = [Kept(np.empty(0, np.int32), np.zeros(sum(row.mask), np.int32)) if row.kept is None else row.kept
             for row in rows]
    return Kept.joined(whole).table()


def _temperatures(rows: Sequence[Row]) -> np.ndarray | None:
    if all(row.temperature is None for row in rows):
        return None
    return np.concatenate([np.full(sum(row.mask), row.temperature or 0, np.float32) for row in rows])
