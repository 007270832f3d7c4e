"""Train batches from an earlier stage's experience: offline reinforcement fine-tuning (mode=train).

Rows are used in the order of their generation and repeat until the last step. They keep the weights version that
generated them, so staleness grows, and importance ratios to the rollout policy bound the update of old rows.
"""

from collections.abc import Callable
from pathlib import Path

from ouroboros.operators.algorithm import Algorithm
from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.job.schedule import Schedule
from ouroboros.pipeline.job.syncs import Unasked
from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.errors import DataError, StageError
from ouroboros.stages.learner.batches.rollouts import Rollouts


class Recorded(Rollouts):
    """Experience from the input `experience`; explorer steps are numbered consecutively across passes."""

    def __init__(self, context: Context, algorithm: Algorithm | None = None, check: Callable[[], None] = lambda: None):
        self.explored = context.inputs["experience"]
        super().__init__(context, algorithm, check)

    def _schedule(self) -> Schedule:
        """`total_steps` optimizer steps, or `total_epochs` passes without a partial last batch.

        Raises DataError when a batch is larger than the whole experience, since rows would repeat within it.
        """
        self.recorded = tables.steps_present(self.explored, "rollouts")
        assert self.recorded == list(range(1, len(self.recorded) + 1)), f"{self.explored} lacks explorer steps"
        first = tables.read(tables.step_file(self.explored, "rollouts", 1), records.Rollout)["attempts"][0].as_py()
        buffer, rows = self.context.config.buffer, first * len(self.recorded)
        batch = buffer.train_batch_size or first
        if batch > rows:
            raise DataError(f"buffer.train_batch_size={batch}: {self.explored.name} explored only {rows} experiences; "
                            "needed at most that. Explore more, or train on fewer at once.")
        steps = buffer.total_steps or max(buffer.total_epochs * rows // batch, 1)
        return Schedule(first, batch, sync_interval=1, sync_offset=0, total_steps=steps)

    def _curates(self) -> bool:
        """As in the stage that explored, or rewarded, them."""
        return bool(tables.steps_present(self.explored, "curated"))

    def _replay(self) -> None:
        """No replay: every rollout comes again with each pass."""

    def _syncs(self) -> Unasked:
        return Unasked()

    def _wait(self, step: int, explorer_step: int) -> None:
        """All rollouts already exist."""

    def _tasks(self) -> Path:
        raise StageError(f"{self.explored} has rows with images, on which mode=train does not train. Train on them in "
                         "the stage that makes them (mode=both).")

    def _file(self, explorer_step: int) -> Path:
        return tables.step_file(self.explored, "experience", self._in_pass(explorer_step))

    def _explorer_step(self, explored: range) -> str:
        first = explored.start  # a batch is at most one pass long: its steps are distinct and follow this one
        return f"({first} + (step - {self._in_pass(first)} + {len(self.recorded)}) % {len(self.recorded)})"

    def _in_pass(self, explorer_step: int) -> int:
        return (explorer_step - 1) % len(self.recorded) + 1

    def _records(self, explored: list[int]) -> list[records.Rollout]:
        """None: their cost is that of the exploring stage."""
        return []
