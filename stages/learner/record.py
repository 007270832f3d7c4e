"""What a trainer writes of an optimizer step: one line of `steps`, and one of `trained` for each row."""

from dataclasses import asdict, dataclass, field

import numpy as np

from ouroboros.operators.correction import Mismatch
from ouroboros.pipeline.job.load import Load
from ouroboros.pipeline.store import records
from ouroboros.stages.learner.actor import Result
from ouroboros.stages.learner.critic import ValueResult
from ouroboros.stages.learner.engine.batch import Batch, Row

COST = {"rollout_seconds": "rollout_seconds", "rollout_tokens": "tokens", "sync_seconds": "sync_seconds",
        "explore_other_seconds": "other_seconds", "evaluate_seconds": "evaluate_seconds",
        "explore_wait_seconds": "wait_seconds", "resampled_groups": "resampled_groups",
        "resample_rounds": "resample_rounds", "missing_groups": "missing_groups",
        "rollout_tail_seconds": "tail_seconds"}  # column of Step -> of Rollout
# those of the loss with their own column
STATISTICS = ("entropy", "kl", "kl_loss", "clip_fraction", "routed_differently")


@dataclass(frozen=True)
class Seconds:
    """Wall time of a step and of its parts, with the GPU memory that it took; columns of the step record. start: what
    the trainer did before its first step; empty later."""

    train_seconds: float
    publish_seconds: float | None
    train_wait_seconds: float
    train_other_seconds: float
    seconds: float
    peak_memory_gib: float | None
    start: dict[str, float] = field(default_factory=dict)


def step_record(stage: str, batch: Batch, result: Result, mismatch: Mismatch | None, values: ValueResult | None,
                seconds: Seconds, load: Load, overlap: bool = False) -> records.Step:
    """The record of a step. stage: its id. overlap: whether engines answered meanwhile (stages/device_sharing.py).

    A field of a part is the column of that name; the rest is null.
    """
    others = sorted((name, value) for name, value in result.statistics.items() if name not in STATISTICS)
    known = {
        "stage": stage, "step": batch.step, "loss": result.loss, "grad_norm": result.grad_norm, "lr": result.lr,
        "kl_loss_coef": result.kl_loss_coef, "trained_rows": len(batch.rows), "trained_tokens": result.tokens,
        "token_budget": result.token_budget, "compiled_graphs": result.compiled_graphs,
        "packing": result.packing, "overlap": overlap,
        "statistics": others, **{name: result.statistics.get(name) for name in STATISTICS},
        **{name: total(batch.explored, column) for name, column in COST.items()},
        "watch_reward": next((one.watch_reward for one in reversed(batch.explored)), None),
    }
    for part in (batch.metrics, mismatch, values, seconds, load):
        known |= asdict(part) if part else {}
    engines = next((one.start for one in batch.explored if one.start), ()) if seconds.start else ()
    known["start"] = [*((f"engines: {part}", value) for part, value in engines), *seconds.start.items()] or None
    return records.Step(**dict.fromkeys(records.schema(records.Step).names) | known)


def total(explored: list[records.Rollout], column: str) -> float | None:
    """The sum of a column over explorer steps; None where none has a value."""
    values = [value for step in explored if (value := getattr(step, column)) is not None]
    return sum(values) if values else None


def trained_rows(batch: Batch, logprobs: list[np.ndarray],
                 entropies: list[np.ndarray] | None = None) -> list[records.Trained]:
    """A record of each row of a batch with rollouts; none for a data set. logprobs, entropies: of a Result."""
    if not batch.rollouts:
        return []
    entropies = entropies or [None] * len(batch.rows)
    return [_trained(batch, *each) for each in zip(batch.rows, logprobs, entropies, strict=True)]


def _trained(batch: Batch, row: Row, logprobs: np.ndarray, entropies: np.ndarray | None) -> records.Trained:
    each = row.of_actions("advantages").tolist() if isinstance(row.columns["advantages"], list) else None
    origin = row.origin
    return records.Trained(row.id, batch.step, row.advantage, each, origin is None, batch.staleness(row),
                           origin and origin.use_count, origin and origin.priority, logprobs, entropies)
