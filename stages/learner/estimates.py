"""Model estimates that advantages need: columns computed by a forward pass, none by default."""

from dataclasses import dataclass

import numpy as np

from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.critic import Critic
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine_teacher import EngineTeacher
from ouroboros.stages.learner.reference import References
from ouroboros.stages.learner.served_teacher import ServedTeacher
from ouroboros.stages.learner.teacher import Teacher

MEASURED = ("old_logprobs", "entropies", "mean_scores")  # of Actor.measure, in its order


@dataclass(frozen=True)
class Estimates:
    """references, critic, teacher: None where unused. asked: the columns of an algorithm (Algorithm.estimates), of
    which old_logprobs are scored by the trainer."""

    actor: Actor
    references: References | None = None
    critic: Critic | None = None
    teacher: Teacher | ServedTeacher | EngineTeacher | None = None
    asked: frozenset[str] = frozenset()

    @property
    def needed(self) -> bool:
        return bool(self.references or self.critic or self.teacher or self.asked & {*MEASURED})

    def add(self, rows: list[Row]) -> None:
        """Adds the columns ref_logprobs, MEASURED, values and teacher_logprobs [R] that are needed.

        MEASURED are those of the weights before the step; unless old_logprobs are asked for, a row keeps the rollout's
        log-probs. Collective.
        """
        if self.references:
            self.references.add(rows)
        if self.asked & {*MEASURED[1:]}:
            measured = self.actor.measure(rows, "mean_scores" in self.asked)
            for place, name in enumerate(MEASURED):
                if name in self.asked:
                    _set(rows, name, [values[:, place] for values in measured])
        elif "old_logprobs" in self.asked:
            _set(rows, "old_logprobs", self.actor.score_rows(rows))
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
