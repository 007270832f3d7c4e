"""Model estimates that advantages need: columns computed by a forward pass, none by default."""

from dataclasses import dataclass

import numpy as np

from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.critic import Critic
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.reference import References
from ouroboros.stages.learner.teacher import Teacher


@dataclass(frozen=True)
class Estimates:
    """references, critic, teacher: None where unused. recompute: the trainer scores old log-probs. entropies: and the
    entropy of each token."""

    actor: Actor
    references: References | None = None
    critic: Critic | None = None
    recompute: bool = False
    teacher: Teacher | None = None
    entropies: bool = False

    @property
    def needed(self) -> bool:
        return bool(self.references or self.critic or self.recompute or self.teacher or self.entropies)

    def add(self, rows: list[Row]) -> None:
        """Adds the columns ref_logprobs, old_logprobs, entropies, values and teacher_logprobs [R] that are needed.

        old_logprobs and entropies are those of the weights before the step; without `recompute` a row keeps the
        rollout's log-probs. Collective.
        """
        if self.references:
            self.references.add(rows)
        if self.entropies:
            measured = self.actor.measure(rows)
            _set(rows, "entropies", [values[:, 1] for values in measured])
        if self.recompute:
            own = [values[:, 0] for values in measured] if self.entropies else self.actor.score_rows(rows)
            _set(rows, "old_logprobs", own)
        if self.critic:
            _set(rows, "values", self.critic.values(rows))
        if self.teacher:
            self.teacher.add(rows)


    def add_proximal(self, rows: list[Row]) -> None:
        """Adds the column prox_logprobs, of the weights before the first step over a batch. Collective."""
        _set(rows, "prox_logprobs", self.actor.score_rows(rows))


def _set(rows: list[Row], column: str, values: list[np.ndarray]) -> None:
    """values: of the action tokens of each row."""
    for row, of_row in zip(rows, values, strict=True):
        row.columns[column] = row.spread(of_row)
