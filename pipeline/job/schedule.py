"""Maps weight versions to rollouts and rollouts to trainer steps: pure functions of the step numbers.

Terms (as in the Trinity-RFT guide): an *explorer step* s = 1, 2, ... answers `batch_size` tasks `repeat_times` times
each, and takes all of them, or the first that are complete (`explorer.over_rollout`); a *trainer step*
t = 1, 2, ... is one optimizer step over `train_batch_size` rows, of which the schedule counts only the new rollouts
(settings/train_batch.py); weights version v is the result of trainer step v, 0 is the stage's initial model.
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ouroboros.pipeline.settings.train_batch import rows_of_step, train_batch
from ouroboros.pipeline.store.errors import ConfigError, DataError, Problem

if TYPE_CHECKING:
    import numpy as np

LASTING = {"constant", "wsd"}  # learning rates that a longer stage may share after the warmup


@dataclass(frozen=True)
class Schedule:
    """Which rows a trainer step is cut from, and with `synchronizer.sync_style=fixed` which weights make them; for
    the others see pipeline/job/syncs.py.

    rows_per_explorer_step: batch_size * repeat_times, or with over_rollout those of the groups that it takes.
    rows_per_trainer_step: train_batch_size, less other_rows: new rollouts.
    sync_interval: trainer steps between weight synchronizations (>= 1).
    sync_offset: explorer steps by which the explorer may lead the trainer (>= 0; 0 is strictly on-policy).
    total_steps: trainer steps of the stage. other_rows: expert or replayed rows of a train batch.
    extendable: whether a longer stage may continue it.
    """

    rows_per_explorer_step: int
    rows_per_trainer_step: int
    sync_interval: int
    sync_offset: int
    total_steps: int
    other_rows: int = 0
    extendable: bool = True

    def __post_init__(self):
        bounds = (
            ("buffer.batch_size * algorithm.repeat_times", self.rows_per_explorer_step, 1),
            ("buffer.train_batch_size", self.rows_per_trainer_step, 1),
            ("synchronizer.sync_interval", self.sync_interval, 1),
            ("synchronizer.sync_offset", self.sync_offset, 0),
            ("buffer.total_steps", self.total_steps, 1),
        )
        for key, value, least in bounds:
            if value < least:
                raise ConfigError(f"{key} is {value}, needed at least {least}.")
        if self.rows_per_explorer_step % self.rows_per_trainer_step and (
            self.rows_per_trainer_step % self.rows_per_explorer_step
        ):
            less = f"less {self.other_rows} expert or replayed rows it " if self.other_rows else ""
            raise ConfigError(Problem(
                "buffer.train_batch_size", f"{less}neither divides nor is a multiple of the "
                f"{self.rows_per_explorer_step} rows of an explorer step (buffer.batch_size * algorithm.repeat_times, "
                "or with explorer.over_rollout those of the groups that it takes); a train batch would cut through a "
                "group in a place that moves from step to step.", "Choose one that does.",
                found=self.rows_per_trainer_step + self.other_rows))

    def until(self, trainer_step: int | None) -> "Schedule":
        """Returns the schedule of the first trainer steps alone, which go on with other settings; None: of all."""
        ends = trainer_step is not None and trainer_step < self.total_steps
        return replace(self, total_steps=trainer_step, extendable=True) if ends else self

    @property
    def explorer_steps(self) -> int:
        """Returns the explorer steps of the stage: just enough rows for the last trainer step."""
        return self.last_explorer_step(self.total_steps)

    def last_explorer_step(self, trainer_step: int) -> int:
        """Returns the explorer step that must be complete before trainer step t can start: ceil(t * B / R)."""
        return -(-trainer_step * self.rows_per_trainer_step // self.rows_per_explorer_step)

    def last_trainer_step(self, explorer_step: int) -> int:
        """Returns the last trainer step that reads no explorer step after s: floor(s * R / B)."""
        return explorer_step * self.rows_per_explorer_step // self.rows_per_trainer_step

    def slots(self, trainer_step: int) -> tuple[int, int]:
        """Returns the half-open range of row positions of trainer step t, counted over the whole stage from 0."""
        return (trainer_step - 1) * self.rows_per_trainer_step, trainer_step * self.rows_per_trainer_step

    def weights_version(self, explorer_step: int) -> int:
        """Returns the weights version that explorer step s must use.

        The last multiple of sync_interval among the trainer steps for which the rows of explorer steps 1 .. s-1-offset
        suffice; 0 before the first.
        """
        trained = self.last_trainer_step(max(explorer_step - 1 - self.sync_offset, 0))
        return trained // self.sync_interval * self.sync_interval

    def oldest(self, explorer_step: int, max_staleness: int) -> int:
        """Returns the oldest weights version by which no row of explorer step s is trained on more than `max_staleness`
        trainer steps later (>= 0)."""
        last = min(-(-explorer_step * self.rows_per_explorer_step // self.rows_per_trainer_step), self.total_steps)
        return max(last - 1 - max_staleness, 0)

    def staleness(self, trainer_step: int) -> dict[int, int]:
        """Maps staleness (trainer steps between sampling and training) to the number of new rows of step t."""
        begin, end = self.slots(trainer_step)
        per_step, found = self.rows_per_explorer_step, {}
        for step in range(begin // per_step + 1, self.last_explorer_step(trainer_step) + 1):
            rows = min(end, step * per_step) - max(begin, (step - 1) * per_step)
            age = trainer_step - 1 - self.weights_version(step)
            found[age] = found.get(age, 0) + rows
        return found

    @property
    def typical_steps(self) -> range:
        """Returns the trainer steps after which `staleness` is periodic: the initial lead, then one period."""
        explored, trained = self.rows_per_explorer_step, self.rows_per_trainer_step
        turn = math.lcm(self.sync_interval * trained, explored) // trained
        ahead = -(-(1 + self.sync_offset) * explored // trained)
        return range(1, min(self.total_steps, ahead + turn) + 1)

    def publishes(self, trainer_step: int) -> bool:
        """Returns whether an explorer step will request version t."""
        return self.requests(self.first_user(trainer_step), trainer_step)

    def requests(self, explorer_step: int, version: int) -> bool:
        """Returns whether explorer step s, of this stage or of a longer one that continues it, begins with version t;
        the latter publishes the last one itself."""
        there = explorer_step <= self.explorer_steps or (self.extendable and version < self.total_steps)
        return there and self.weights_version(explorer_step) == version

    def first_user(self, trainer_step: int) -> int:
        """Returns the first explorer step that may request version t; if it does not, none does."""
        return self.last_explorer_step(trainer_step) + 1 + self.sync_offset

    def last_with_same_weights(self, explorer_step: int) -> int:
        """Returns the last explorer step with the same weights as step s; after it the explorer has to wait."""
        return self._last_up_to(self.weights_version(explorer_step), explorer_step)

    def last_before_training(self, trainer_step: int) -> int:
        """Returns the last explorer step with weights 0 .. t-1; when colocated, it has the device until then."""
        return self._last_up_to(trainer_step - 1, self.last_explorer_step(trainer_step))

    def _last_up_to(self, version: int, explorer_step: int) -> int:
        last = explorer_step
        while last < self.explorer_steps and self.weights_version(last + 1) <= version:
            last += 1
        return last


def reaches(version: int, before: int, interval: int) -> bool:
    """Returns whether weights are the first to reach another multiple of `interval` (>= 1). before: the version of the
    explorer step before. Version 0 does not count: it is the stage's initial model."""
    return version // interval > before // interval


def task_order(count: int, epoch: int, seed: int) -> "np.ndarray":
    """Returns the order of `count` tasks in epoch e: a permutation that depends only on (seed, epoch)."""
    import numpy as np

    return np.random.default_rng([seed, epoch]).permutation(count)


def rollout_schedule(config, task_count: int) -> Schedule:
    """Returns the schedule of an explorer alone (mode=explore): every step uses version 0, the initial model.

    It has `total_steps`, or the steps of `total_epochs` passes over the `task_count` tasks, the last step truncated;
    its lead is unlimited. Raises DataError when there is no task.
    """
    _refuse_none(task_count)
    buffer = config.buffer
    steps = buffer.total_steps or max(buffer.total_epochs * task_count // buffer.batch_size, 1)
    rows = rows_of_step(config)
    return Schedule(rows, rows, sync_interval=1, sync_offset=steps, total_steps=steps)


def rft_schedule(config, task_count: int) -> Schedule:
    """Returns the schedule of an rft stage from its settings (sections algorithm, buffer, synchronizer).

    Without `total_steps` the stage makes `total_epochs` passes over the `task_count` tasks, the last batch truncated.
    Raises DataError when there is no task.
    """
    _refuse_none(task_count)
    batch, explored = train_batch(config), rows_of_step(config)
    rows = config.buffer.total_epochs * task_count * explored // config.buffer.batch_size
    kinds = {one.optimizer.lr_scheduler_type for one in (config.algorithm, getattr(config.trainer, "critic", None))
             if getattr(one, "optimizer", None)}
    return Schedule(
        rows_per_explorer_step=explored,
        rows_per_trainer_step=batch.fresh,
        sync_interval=config.synchronizer.sync_interval,
        sync_offset=config.synchronizer.sync_offset,
        total_steps=config.buffer.total_steps or max(rows // batch.fresh, 1),
        other_rows=batch.total - batch.fresh,
        extendable=kinds <= LASTING,
    )


def first_explored(config, step: int) -> int:
    """Returns the first explorer step that trainer steps after `step` read, in an rft stage with these settings.

    With replay it is 1: a resumed stage repeats the draws of all earlier steps; so does a selector that reads them.
    """
    if config.buffer.trainer_input.experience_buffer.replay_buffer.enable or measures(config.buffer.explorer_input):
        return 1
    schedule = rft_schedule(config, 1)  # the number of tasks decides only its end
    return schedule.slots(step + 1)[0] // schedule.rows_per_explorer_step + 1


def measures(explorer_input) -> bool:
    """Returns whether a training set has a selector that reads the experience of earlier steps."""
    return any(one.data_selector.reads_rates for _, one in explorer_input.train_places)


def _refuse_none(task_count: int) -> None:
    if task_count < 1:
        raise DataError("there is no task to explore: no curated row has split train (one with a solution is a "
                        "demonstration, split sft). Give the task files rows without one, or leave the stage out.")
