"""Shared by losses: ratios that cannot overflow and their bounds, sums and means over rows, statistics.

A row is one sequence; rows are never split over micro-batches, so a sum over a row does not depend on the split.
"""

from __future__ import annotations

from pydantic import Field

from ouroboros.pipeline.settings.arguments.base import Loss
from ouroboros.pipeline.store.lazy import Tensor, torch

MOST = 20.0  # exp(20) = 5e8: far outside every trust region, and finite in float32 after any product
OF_RESPONSES = "seq-mean-token-mean"  # the aggregation of losses whose objective is a mean over responses
Losses = tuple[Tensor, dict[str, Tensor]]  # the loss of each token, and statistics, [N] each


class Clip(Loss):
    """The bounds 1 - low and 1 + high of a ratio."""
    clip_range: float = Field(0.2, ge=0, description="both bounds, unless they are set apart")
    clip_range_low: float | None = Field(None, ge=0, description="the ratio is clipped at 1 - this; null: clip_range")
    clip_range_high: float | None = Field(None, ge=0, description="the ratio is clipped at 1 + this; null: clip_range")

    @property
    def ranges(self) -> tuple[float, float]:
        """(low, high)."""
        return (self.clip_range if self.clip_range_low is None else self.clip_range_low,
                self.clip_range if self.clip_range_high is None else self.clip_range_high)

    @property
    def bounds(self) -> tuple[float, float]:
        """(1 - low, 1 + high)."""
        low, high = self.ranges
        return 1.0 - low, 1.0 + high


def log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """log(pi / pi_old) clamped to +-20, [N], so that exp is finite for impossible tokens."""
    return (logprobs - old_logprobs).clamp(-MOST, MOST)


def row_vector(values: Tensor, rows: Tensor) -> Tensor:
    """Sums of the tokens of each row, [R], R the highest row + 1; 0 for a row without tokens."""
    count = int(rows.max()) + 1 if len(rows) else 0
    return torch.zeros(count, dtype=values.dtype, device=values.device).index_add(0, rows, values)


def row_sum(values: Tensor, rows: Tensor) -> Tensor:
    """The sum over each row, repeated for each of its tokens, [N]."""
    return row_vector(values, rows)[rows]


def row_max(values: Tensor, rows: Tensor) -> Tensor:
    """The largest of each row, repeated for each of its tokens, [N]."""
    count = int(rows.max()) + 1 if len(rows) else 0
    largest = torch.full((count,), -torch.inf, dtype=values.dtype, device=values.device)
    return largest.scatter_reduce(0, rows, values, "amax")[rows]


def row_mean(values: Tensor, rows: Tensor) -> Tensor:
    """The mean over each row, repeated for each of its tokens, [N]."""
    return row_sum(values, rows) / row_sum(torch.ones_like(values), rows)


def statistics(logprobs: Tensor, old_logprobs: Tensor, clipped: Tensor, **more: Tensor) -> dict[str, Tensor]:
    """kl, clip_fraction and `more`, [N] without gradient.

    kl: k3 estimate of KL(old || new) in nats, ratio - 1 - log ratio (Schulman 2020), non-negative. clip_fraction: 1
    where the loss restricts a token.
    """
    change = log_ratio(logprobs, old_logprobs)
    values = {"kl": change.expm1() - change, "clip_fraction": clipped.to(logprobs.dtype), **more}
    return {name: value.detach() for name, value in values.items()}
