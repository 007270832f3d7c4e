"""Model estimates that advantages need: columns computed by a forward pass, none by default."""

from collections.abc import Sequence
from dataclasses import dataclass

from stages.learner.actor import Actor
from stages.learner.critic import Critic
from stages.learner.engine.packing import Row
from stages.learner.reference import References
from stages.learner.teacher import Teacher


@dataclass
class Estimates:
    """references, critic, teacher: None where unused. recompute: the trainer scores old log-probs."""

    actor: Actor
    references: References | None
    critic: Critic | None
    recompute: bool
    teacher: Teacher | None = None

    @property
    def needed(self) -> bool:
        return bool(self.references or self.critic or self.recompute or self.teacher)

    def add(self, rows: list[Row], origins: Sequence[int]) -> None:
        """Adds the columns ref_logprobs, old_logprobs, values and teacher_logprobs [R] that are needed.

        old_logprobs are those of the weights before the step; without `recompute` a row keeps the rollout's.
        Collective.
        """
        if self.references:
            self.references.add(rows, origins)
        if self.recompute:
            for row, scored in zip(rows, self.actor.score_rows(rows), strict=True):
                row.columns["old_logprobs"] = row.spread(scored)
        if self.critic:
            for row, values in zip(rows, self.critic.values(rows), strict=True):
                row.columns["values"] = row.spread(values)
        if self.teacher:
            self.teacher.add(rows, origins)
