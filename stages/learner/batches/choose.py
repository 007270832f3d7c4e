"""Train batches, from the rows they are cut from to the record of their step."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from pipeline.check.batch_rules import batch_of
from pipeline.job.context import Context
from pipeline.job.selection import tasks_of_step
from pipeline.store import records
from pipeline.store.errors import DataError
from stages.learner.actor import Result
from stages.learner.engine.packing import Row

STEP_STATISTICS = ("entropy", "kl", "kl_loss", "clip_fraction")  # those with their own column in the step record


@dataclass
class Cut:
    """The rows of a step's batch before models score them (stages/learner/estimates.py).

    rows: rollouts of the batch, and those that advantages compare them with. origins: explorer step of each. table: the
    same rows as input of the advantage function. chosen: ids of the batch's rows. experts: demonstrations in the batch,
    which advantages do not see. available: time.perf_counter() when all inputs existed. facts: step record fields known
    so far.
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
    """The rows of one optimizer step, the same on every rank. facts: step record fields from SQL.

    available: time.perf_counter() when all inputs existed. staleness: of each rollout; None for demonstrations. uses:
    for each rollout, the number of earlier batches that used it and its replay priority; None for others.
    """

    rows: list[Row]
    available: float = 0.0
    staleness: list[int | None] = field(default_factory=list)
    uses: list[tuple[int | None, float | None]] = field(default_factory=list)
    facts: dict = field(default_factory=dict)

    @property
    def rollouts(self) -> list[Row]:
        """The rows that are not demonstrations."""
        return [row for row in self.rows if not row.columns.get("is_expert")]

    def longest_row(self, limit: int) -> list[int]:
        """Token ids of the longest row, at most `limit` and one fewer than the row: a probe of the weights."""
        tokens = max((row.tokens for row in self.rows), key=len)
        return tokens[: min(limit, len(tokens) - 1)]


class GivenRows:
    """Batches from a fixed data set, each row once per epoch; publishes no weights.

    rows: in order; groups of `unit` consecutive rows (2 for pairs) are drawn together. what: their name in messages.
    """

    hands_over = False
    unit, what = 1, "demonstrations"

    def __init__(self, context: Context, rows: list[Row]):
        """Raises DataError when a batch is larger than the data set, since rows would repeat within it."""
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
        """Fixed data sets write no table of trained rows."""
        return []


def step_row(context: Context, step: int, batch: Batch, result: Result) -> dict:
    """The step record fields known from the batch and its training result; the rest null."""
    own = {name: value for name, value in result.statistics.items() if name in STEP_STATISTICS}
    others = {name: value for name, value in result.statistics.items() if name not in own}
    empty = dict.fromkeys(records.schema(records.Step).names)
    return empty | {
        "stage": context.id, "step": step, "loss": result.loss, "grad_norm": result.grad_norm,
        "trained_rows": len(batch.rows), "trained_tokens": result.tokens, "statistics": sorted(others.items()),
    } | own | batch.facts


def mean(values: list[float]) -> float | None:
    """Mean, or None for an empty list."""
    return float(np.mean(values)) if values else None


def advantage_of(row: Row) -> float:
    """A row's advantage as one number: the mean of per-token advantages, 0 without action tokens."""
    given = row.columns["advantages"]
    return mean(row.of_actions("advantages").tolist()) or 0.0 if isinstance(given, list) else given
