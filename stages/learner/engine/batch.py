"""A train batch: its rows, where the rollouts among them come from, and what is measured before they are trained on."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ouroboros.pipeline.store import records
from ouroboros.pipeline.store.pictures import Picture
from ouroboros.workflows.protocol.kept import Kept


@dataclass(frozen=True, slots=True)
class Origin:
    """Columns of `experience`, and of the batch selection, for the row behind a rollout.

    step: explorer step. position: of the attempt within the stage, shared by its turns. selected: in the batch, not
    only compared with its rows. use_count: earlier batches with its group; priority: by which it was drawn again.
    """

    step: int
    position: int
    turn: int
    group_id: str
    weights_version: int
    reward: float
    accuracy: float | None
    selected: bool = True
    use_count: int = 0
    priority: float | None = None


@dataclass(slots=True)
class Row:
    """One sequence to train on.

    tokens: [L] prompt and response token ids; prompt_length: 0 < P < L (the first response token needs a predecessor).
    mask: [R] 1 on action tokens, R = L - P. id: experience id, or task id for demonstrations. columns: inputs of the
    loss by name, [R] one number per token, or one number for all tokens. origin: None: not a rollout. experts: that the
    engine gave the position before each action token to [sum of mask, layers, choices]; None: not known. temperature:
    at which it was sampled; None: model.temperature. kept: what each action token was sampled among [sum of mask];
    None: the whole vocabulary. pictures: images whose tokens are in it, none of them sampled.
    """

    id: str
    tokens: list[int]
    prompt_length: int
    mask: list[int]
    columns: dict[str, float | Sequence[float]] = field(default_factory=dict)
    origin: Origin | None = None
    experts: np.ndarray | None = None
    temperature: float | None = None
    kept: Kept | None = None
    pictures: tuple[Picture, ...] = ()

    @property
    def given(self) -> int:
        """The number of tokens up to the last one that was not sampled: all images are within."""
        return len(self.tokens) - self.mask[::-1].index(0) if 0 in self.mask else self.prompt_length

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Scatters what is given of each action token, [sum of mask, ...], to [R, ...] float32, 0 at other tokens."""
        every = np.zeros((len(self.mask), *values.shape[1:]), np.float32)
        every[np.asarray(self.mask, bool)] = values
        return every

    def of_actions(self, column: str) -> np.ndarray:
        """A column at the action tokens, float32 (or bool) [sum of mask]."""
        values, acts = self.columns[column], np.asarray(self.mask, bool)
        if isinstance(values, (int, float)):
            return np.full(np.count_nonzero(acts), values, bool if isinstance(values, bool) else np.float32)
        return np.asarray(values, np.float32)[acts]

    @property
    def advantage(self) -> float:
        """The advantage as one number: the mean of per-token advantages, 0 without action tokens."""
        advantages = self.columns["advantages"]
        return mean(self.of_actions("advantages").tolist()) or 0.0 if isinstance(advantages, list) else advantages


@dataclass(frozen=True)
class BatchMetrics:
    """Columns of the step record known before the step; None where the stage has no such quantity."""

    failed_rows: int
    dropped_rows: int | None = None
    stale_rows: int | None = None
    replayed_rows: int | None = None
    expert_rows: int | None = None
    staleness_max: int | None = None
    reward: float | None = None
    solve_rate: float | None = None
    zero_variance_groups: int | None = None
    response_tokens_mean: float | None = None
    kl_penalty: float | None = None
    kl_penalty_coef: float | None = None
    teacher_kl: float | None = None


@dataclass(frozen=True)
class Batch:
    """The rows of one optimizer step, the same on every rank; every source of train batches returns it.

    demonstrations: rows that no policy of the stage sampled: all rows of a data set, or those mixed in. rollouts: rows
    of `experience`; while `table` is there, also those that advantages compare the batch's own with (Origin.selected).
    table: input of the advantage function, one line per rollout; None once they have advantages. available:
    time.perf_counter() when all inputs existed. explored: explorer steps whose cost is in the record of this step.
    """

    step: int
    demonstrations: list[Row] = field(default_factory=list)
    rollouts: list[Row] = field(default_factory=list)
    table: pa.Table | None = None
    available: float = 0.0
    metrics: BatchMetrics | None = None
    explored: list[records.Rollout] = field(default_factory=list)

    @property
    def rows(self) -> list[Row]:
        """The rows to train on: rollouts, then demonstrations."""
        return self.rollouts + self.demonstrations

    def staleness(self, row: Row) -> int | None:
        """Trainer steps between the weights that sampled a row and those before this step; None: not a rollout."""
        return row.origin and self.step - 1 - row.origin.weights_version

    def probe(self, limit: int) -> tuple[list[int], tuple[Picture, ...]]:
        """A probe of the weights: token ids of the longest row, at most `limit` and one fewer than the row, and its
        images; of those with images if there are any, all of which are within."""
        row = max(self.rows, key=lambda row: (bool(row.pictures), len(row.tokens)))
        limit = max(limit, row.given) if row.pictures else limit
        return row.tokens[: min(limit, len(row.tokens) - 1)], row.pictures


def mean(values: list[float]) -> float | None:
    """Mean, or None for an empty list."""
    return float(np.mean(values)) if values else None
