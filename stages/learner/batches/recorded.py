"""Train batches from experience that an earlier stage wrote: offline reinforcement fine-tuning (mode=train).

The rows come in the order in which they were made, over and over as long as there are steps; they keep the weights
version that made them, so staleness grows and the ratios to the rollout policy bound what an old row may do.
"""

from collections.abc import Callable
from pathlib import Path

from pipeline.job.context import Context
from pipeline.job.schedule import Schedule
from pipeline.store import records, tables
from pipeline.store.errors import DataError
from stages.learner.batches.rollouts import Rollouts


class Recorded(Rollouts):
    """Experience of the stage that is the input `experience`; explorer steps are counted through all passes over it."""

    hands_over = False

    def __init__(self, context: Context, check: Callable[[], None] = lambda: None):
        self.explored = context.inputs["experience"]
        super().__init__(context, check)

    def _schedule(self) -> Schedule:
        """`total_steps` optimizer steps, or `total_epochs` passes, the last batch cut off.

        Raises DataError when a batch is larger than the whole experience: a row would be in it twice.
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

    def _replay(self) -> None:
        """Every rollout is there from the beginning, and comes again with each pass."""

    def publishes(self, step: int) -> bool:
        """There is nobody to publish weights for."""
        return False

    def _wait(self, step: int, explorer_step: int) -> None:
        """Everything is there."""

    def _file(self, explorer_step: int) -> Path:
        return tables.step_file(self.explored, "experience", self._in_pass(explorer_step))

    def _explorer_step(self, explored: range) -> str:
        first = explored.start  # a batch is no longer than a pass: its steps differ, and follow this one
        return f"({first} + (step - {self._in_pass(first)} + {len(self.recorded)}) % {len(self.recorded)})"

    def _in_pass(self, explorer_step: int) -> int:
        return (explorer_step - 1) % len(self.recorded) + 1

    def _cost(self, explored: list[int]) -> dict:
        """Paid for by the stage that explored."""
        return {}
