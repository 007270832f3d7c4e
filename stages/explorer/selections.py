"""The tasks of every explorer step, and why they were chosen (table `selection`).

Selectors that read experience see the steps up to s - 1 - sync_offset, whose rows are there whatever the timing: the
choice is a function of seed, step and those rows, and a resumed stage reads them again. A task's measured rate is the
mean `accuracy` of its attempts that were rewarded, or their reward where the reward function gives no accuracy, of
several players the mean of theirs.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ouroboros.pipeline.job.selection import Selector, redraw, select
from ouroboros.pipeline.settings.data import SELECTORS, profiled
from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.stages.explorer.profiles import Rates, rate_of
from ouroboros.stages.explorer.resample import Group
from ouroboros.stages.explorer.selectors import DifficultyBased, SolveRatePools, by_features

KEY = "data_selector.selector_type"


class Selections:
    """The selectors of all training sets, opened once and used in every step."""

    def __init__(self, prompts: Any, config: Any, directory: Path, lag: int, written: Callable[[], Any],
                 rates: Rates | None = None):
        """prompts: of explorer/prompts.py. lag: explorer steps before the last one whose rows may not be there yet.
        written: waits for the rows of the last step. rates: that earlier stages measured."""
        self.prompts, self.config, self.directory = prompts, config, directory
        self.lag, self.written = lag, written
        self.until = 0  # the last explorer step whose rows were read
        self.sets = [taskset for taskset, _ in prompts.given]
        self.sizes = [len(tasks) for _, tasks in prompts.given]
        self.features = {index: _features(*given, rates or {}) for index, given in enumerate(prompts.given)
                         if given[0].data_selector.reads_features}
        self.selectors = [self._selector(index) for index in range(len(self.sets))]
        self.measuring = {index: made for index in range(len(self.sets)) if (made := self._measuring(index))}
        self.explains = bool(self.features or self.measuring)
        self.numbers: dict[tuple[str, str], list[int]] = {}  # of the tasks with a set and an id
        for number, task in enumerate(prompts.tasks if self.measuring else ()):
            self.numbers.setdefault((prompts.set_of(number).name, task.task_id), []).append(number)

    def of_step(self, step: int) -> list[int]:
        """The numbers of the tasks of an explorer step, in order of use. Steps are asked for in ascending order."""
        if self.measuring:
            self._read(step)
        orders = {index: one.order(step) for index, one in self.measuring.items()}
        return select(self.selectors, self.config.buffer.batch_size, step, self.config.seed, orders)

    def fresh(self, owners: Sequence[int], asked: Collection[int], step: int, round_: int) -> list[int]:
        """The numbers of tasks that replace others of the same sets in a resampling round."""
        return redraw(self.selectors, owners, asked, step, round_)

    def rows(self, step: int, groups: Sequence[Group], stage: str) -> list[records.Selection]:
        """Why the groups of a step were chosen, in order."""
        return [self._row(step, group, stage) for group in groups]

    def _row(self, step: int, group: Group, stage: str) -> records.Selection:
        owner = self.prompts.owner(group.task)
        one, place = self.sets[owner], group.task - self.prompts.sets[owner].begin
        rate, score, reason = None, None, SELECTORS[one.data_selector.selector_type].summary()
        if owner in self.measuring:
            rate, score, reason = self.measuring[owner].why(place)
        elif owner in self.features:
            score = float(self.features[owner][place, 0])
        if group.round:
            score, reason = None, "in place of a group that teaches nothing"
        return records.Selection(stage, step, f"{step}/{group.name}", one.name, self.prompts.tasks[group.task].task_id,
                                 one.data_selector.selector_type, rate, score, reason,
                                 self.until or None if owner in self.measuring else None)

    def _selector(self, index: int) -> Selector:
        settings = self.sets[index].data_selector
        ordered = settings.reads_features and not settings.reads_rates
        order = by_features(self.features[index]).tolist() if ordered else ()
        return Selector(self.sizes[index], settings.selector_type, self._seed(index), tuple(order))

    def _measuring(self, index: int) -> DifficultyBased | SolveRatePools | None:
        settings = self.sets[index].data_selector
        if not settings.reads_rates:
            return None
        name = settings.selector_type
        given = dict(SELECTORS[name].bind(name, settings.kwargs, "data_selector.kwargs"))
        if settings.reads_features:
            return DifficultyBased(self.features[index], self._seed(index), **given)
        return SolveRatePools(self.sizes[index], self._seed(index), **given)

    def _seed(self, index: int) -> int:
        own = self.sets[index].data_selector.seed
        return self.config.seed if own is None else own

    def _read(self, step: int) -> None:
        """Reads the rows of the steps that this one may know and that were not read yet."""
        last = step - 1 - self.lag
        if last > self.until and not tables.step_file(self.directory, "rollouts", last).exists():
            self.written()
        for earlier in range(self.until + 1, last + 1):
            self._measure(earlier)
            self.until = earlier

    def _measure(self, step: int) -> None:
        rates = measured(self.directory, step, self.config.algorithm.repeat_times)
        for index, one in self.measuring.items():
            begin, size = self.prompts.sets[index].begin, self.sizes[index]
            own = {number - begin: rate for place, rate in rates.items() for number in self.numbers[place]
                   if begin <= number < begin + size}
            if wrong := next((rate for rate in own.values() if not 0 <= rate <= 1), None):
                raise DataError(f"{KEY}={self.sets[index].data_selector.selector_type}: a task of step {step} has the "
                                f"mean reward {wrong:g}, which is no solve rate. Needed a reward function with a "
                                "component accuracy, or rewards from 0 to 1.")
            if own:
                one.measure(own)


def measured(directory: Path, step: int, repeats: int) -> dict[tuple[str, str], float]:
    """(set, task_id) -> mean accuracy, else reward, of its rewarded attempts in an explorer step.

    repeats: attempts of a group; a greedy one besides them is not counted.
    """
    table = tables.read(tables.step_file(directory, "experience", step), records.Experience).select(
        ["slot", "taskset", "task_id", "run_index", "status", "reward", "accuracy", "role"])
    last = {(row["slot"], row["role"]): row for row in table.to_pylist()
            if row["status"] in ("ok", "no_variance") and row["run_index"] < repeats}
    found: dict[tuple[str, str], dict[int, list[dict[str, Any]]]] = {}
    for (slot, _), row in last.items():
        found.setdefault((row["taskset"], row["task_id"]), {}).setdefault(slot, []).append(row)
    return {place: _rate(list(attempts.values())) for place, attempts in found.items()}


def _rate(attempts: Sequence[Sequence[dict[str, Any]]]) -> float:
    """Of one task, whose attempts have the same reward functions. attempts: the last row of each player."""
    name = "accuracy" if all(row["accuracy"] is not None for rows in attempts for row in rows) else "reward"
    return float(np.mean([np.mean([row[name] for row in rows]) for rows in attempts]))


def _features(taskset: Any, tasks: Sequence[records.Task], rates: Rates) -> np.ndarray:
    """The features of a set's tasks, [tasks, keys]. Raises DataError for a set that has none."""
    keys = taskset.data_selector.feature_keys
    found = [dict(task.features or ()) | {key: rate for key in keys if (
        rate := rate_of(key, taskset.name, task.task_id, rates)) is not None} for task in tasks]
    for key in keys:
        if lacking := sum(key not in one for one in found):
            raise DataError(f"taskset '{taskset.name}': {lacking} of {len(tasks)} tasks have no {key} "
                            f"(data_selector.feature_keys); {_why_lacking(key, taskset.name, rates)}.")
    made = np.array([[one[key] for key in keys] for one in found])
    if taskset.data_selector.reads_rates and not ((made >= 0) & (made <= 1)).all():
        raise DataError(f"taskset '{taskset.name}': {KEY}={taskset.data_selector.selector_type} reads solve rates, "
                        f"from 0 to 1, found {made.min():g} to {made.max():g} under {', '.join(keys)}.")
    return made


def _why_lacking(key: str, taskset: str, rates: Rates) -> str:
    if (named := profiled(key)) is None:
        return "needed a number in each record of its files: a generator makes none"
    explored = dict.fromkeys(name for name, _ in rates[named[0]])
    if taskset not in explored:
        return f"stage '{named[0]}' explored {', '.join(map(str, explored))}, and needed a set of that name"
    return (f"stage '{named[0]}' did not attempt them: it must read the same tasks, and its buffer.total_steps be "
            "their number divided by batch_size, rounded up, with selector_type shuffle or sequential")
