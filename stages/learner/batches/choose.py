"""What a train batch is, from the rows it is cut from to the record of its step."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from pipeline.check.batch_rules import batch_of
from pipeline.job.context import Context
from pipeline.job.schedule import tasks_of_step
from pipeline.store import records
from pipeline.store.errors import DataError
from stages.learner.actor import Result
from stages.learner.engine.packing import Row

STEP_STATISTICS = ("entropy", "kl", "kl_loss", "clip_fraction")  # those with a column of their own


@dataclass
class Cut:
    """All rows that the batch of a step is made of, before what models say of them (stages/learner/estimates.py).

    rows: rollouts, those of the batch, and those that its advantages compare them with. origins: of each, the explorer
    step. table: the same rows as advantages read them. chosen: ids of those of the batch. experts: its rows of an
    expert, which no advantage sees. available: time.perf_counter() at which all of it was there. facts: fields of the
    step record that are known.
    """

    step: int
    rows: list[Row]
    origins: list[int]
    table: pa.Table
    chosen: frozenset[str]
    experts: list[Row]
    available: float
    facts: dict


@dataclass
class Batch:
    """The rows of one optimizer step, the same on every rank. facts: fields of the step record that SQL gave.

    available: time.perf_counter() at which all that it is cut from was there. staleness: of each rollout; None of a row
    of an expert. uses: of each rollout the batches that had it before, and its priority in the replay; None of others.
    """

    rows: list[Row]
    available: float = 0.0
    staleness: list[int | None] = field(default_factory=list)
    uses: list[tuple[int | None, float | None]] = field(default_factory=list)
    facts: dict = field(default_factory=dict)

    @property
    def rollouts(self) -> list[Row]:
        """The rows that no expert gave."""
        return [row for row in self.rows if not row.columns.get("is_expert")]

    def longest_row(self, limit: int) -> list[int]:
        """Token ids of the longest row, at most `limit` and one less than the row: a probe of the weights."""
        tokens = max((row.tokens for row in self.rows), key=len)
        return tokens[: min(limit, len(tokens) - 1)]


class GivenRows:
    """Batches from rows that are there from the beginning, every one once an epoch; no explorer waits for weights.

    rows: in order, `unit` of them belong together (a pair) and are drawn together. what: their name in messages.
    """

    hands_over = False
    unit, what = 1, "demonstrations"

    def __init__(self, context: Context, rows: list[Row]):
        """Raises DataError when a batch is larger than all rows: one would be in it twice."""
        self.context, self.rows = context, rows
        buffer = context.config.buffer
        key, self.batch_size = batch_of(vars(buffer))
        count = len(rows) // self.unit
        if self.batch_size > count:
            raise DataError(f"{key}={self.batch_size}: a step takes so many {self.what}, each once, and those "
                            f"curated and within the token limits are {count}: {self.batch_size - count} short. "
                            f"Needed at most {count}.")
        self.total_steps = buffer.total_steps or max(buffer.total_epochs * count // self.batch_size, 1)

    def cut(self, step: int) -> list[Row]:
        chosen = tasks_of_step(len(self.rows) // self.unit, self.batch_size, step, self.context.config.seed)
        return [row for place in chosen for row in self.rows[self.unit * place : self.unit * (place + 1)]]

    def batch(self, cut: list[Row]) -> Batch:
        return Batch(cut)

    def publishes(self, step: int) -> bool:
        return False

    def finish(self, step: int, batch: Batch, logprobs: list[np.ndarray]) -> list[records.Trained]:
        """What is given leaves no table of trained rows behind."""
        return []


def step_row(context: Context, step: int, batch: Batch, result: Result) -> dict:
    """The fields of a step record that the batch and its training give; the rest null."""
    own = {name: value for name, value in result.statistics.items() if name in STEP_STATISTICS}
    others = {name: value for name, value in result.statistics.items() if name not in own}
    empty = dict.fromkeys(records.schema(records.Step).names)
    return empty | {
        "stage": context.id, "step": step, "loss": result.loss, "grad_norm": result.grad_norm,
        "trained_rows": len(batch.rows), "trained_tokens": result.tokens, "statistics": sorted(others.items()),
    } | own | batch.facts


def mean(values: list[float]) -> float | None:
    """None of nothing."""
    return float(np.mean(values)) if values else None


def advantage_of(row: Row) -> float:
    """What a row's advantage is as one number: of one a token their mean, 0 without action tokens."""
    given = row.columns["advantages"]
    return mean(row.of_actions("advantages").tolist()) or 0.0 if isinstance(given, list) else given
