"""An algorithm's loss over the rows of a train batch: which columns they need, how they are averaged, what is chosen.

operators/algorithm.py has the loss of a token. Here rows, in whatever micro-batches, are made the columns of all their
action tokens, and back.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ouroboros.operators.algorithm import Algorithm
from ouroboros.operators.correction import Mismatch, importance_correction, mismatch
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.packing import Aggregation


class Objective:
    """The loss of a micro-batch's action tokens, by an algorithm; without one by that of the settings."""

    def __init__(self, config, algorithm: Algorithm | None = None):
        """config: the stage's settings (algorithm, model)."""
        self.algorithm = own = algorithm or Algorithm.of(config)
        self.kl, self.several, self.chooses, self.correction = own.kl, own.several, own.chooses, own.correction
        self.needs_entropy_gradient, self.row_columns = own.needs_entropy_gradient, own.row_columns
        self.aggregation = Aggregation(own.aggregation, own.normalizer, unit=2 if config.algorithm.on_pairs else 1,
                                       by_kind=own.by_kind, own=own.weights)

    def __call__(self, columns: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """columns: name -> [N], from rows and forward. Returns the loss [N] and statistics of [N]."""
        return self.algorithm.loss(columns)

    def choose(self, rows: list[Row], measured: list[np.ndarray]) -> None:
        """Sets the columns by which an algorithm says which tokens teach, over all rows of an optimizer step.

        measured: log-prob and entropy of each action token before the step, [n, 2] of each row. Demonstrations, which
        are not the policy's own, always teach.
        """
        own = [(row, values) for row, values in zip(rows, measured, strict=True) if not row.columns.get("is_expert")]
        both = torch.from_numpy(np.concatenate([values for _, values in own] or [np.zeros((0, 2), np.float32)]))
        counts = [len(values) for _, values in own]
        columns = {"logprobs": both[:, 0], "entropy": both[:, 1],
                   "rows": torch.repeat_interleave(torch.arange(len(own)), torch.tensor(counts, dtype=torch.int64))}
        columns |= {name: torch.from_numpy(np.concatenate([row.of_actions(name) for row, _ in own] or [[]]))
                    for name in self.algorithm.chosen_by.difference(columns)
                    if all(name in row.columns for row, _ in own)}  # what `choose` makes is not there yet
        for name, values in self.algorithm.choose(columns).items():
            made = values.numpy().astype(np.float32)
            for row in rows:
                row.columns[name] = 1.0
            for (row, _), part in zip(own, np.split(made, np.cumsum(counts)[:-1]), strict=False):
                row.columns[name] = row.spread(part)

    def mismatch(self, rows: list[Row], logprobs: Sequence[np.ndarray]) -> Mismatch:
        """Mismatch between engine and trainer, bounded as in the correction even where none is applied.

        rows: rollouts; for stale ones it includes the policy's updates. logprobs: of the trainer, [N] for each row.
        """
        ours, engines = (torch.from_numpy(np.concatenate(parts))
                         for parts in (logprobs, [row.of_actions("rollout_logprobs") for row in rows]))
        row_of = torch.from_numpy(np.repeat(np.arange(len(rows)), [len(values) for values in logprobs]))
        weights, bounded = importance_correction(ours, engines, row_of, **self.correction or {"level": "token"})
        return mismatch(ours, engines, weights, **bounded)
