"""The composition of a train batch: new rollouts, replayed rollouts, expert rows.

The schedule counts only the new ones (pipeline/job/schedule.py); the other two are a share of the whole batch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from ouroboros.pipeline.settings.arguments.rows import Mix
from ouroboros.pipeline.store.errors import ConfigError, Problem

MIX = Mix()

RATIO = "algorithm.sample_strategy_args.expert_data_ratio"
REPLAY = "buffer.trainer_input.experience_buffer.replay_buffer"


@dataclass(frozen=True)
class TrainBatch:
    """Rows of one train batch by origin. Replayed ones are whole groups, and are missing in the first steps."""

    fresh: int
    replayed: int = 0
    experts: int = 0

    @property
    def total(self) -> int:
        return self.fresh + self.replayed + self.experts


def train_batch(config) -> TrainBatch:
    """Computes the composition of a train batch from a stage's settings (sections algorithm, buffer).

    Raises ConfigError for shares that leave no new rows, replay no whole group, or mix in no row.
    """
    algorithm, buffer = config.algorithm, config.buffer
    group = algorithm.repeat_times or 1  # unknown for an unknown algorithm
    replay = buffer.trainer_input.experience_buffer.replay_buffer
    ratio = algorithm.sample_strategy_args.get("expert_data_ratio", MIX.expert_data_ratio)
    experts = share(RATIO, ratio) if algorithm.sample_strategy == "mix" else Fraction(0)
    replayed = share(f"{REPLAY}.replay_ratio", replay.replay_ratio) if replay.enable else Fraction(0)
    if experts + replayed >= 1:
        raise ConfigError(Problem(RATIO, f"and {REPLAY}.replay_ratio={float(replayed):g} leave no row of a train batch "
                                  "to new rollouts; needed less than 1 together.", found=f"{float(experts):g}"))
    explored = rows_of_step(config)
    made = divided(buffer.train_batch_size, explored, group, experts, replayed)
    if replay.enable:
        _refuse_broken_groups(made, group)
    return made


def given_batch(buffer) -> tuple[str, int]:
    """Returns the setting for given rows (or pairs) per optimizer step, and its value."""
    key = "train_batch_size" if buffer.train_batch_size else "batch_size"
    return f"buffer.{key}", getattr(buffer, key)


def rows_of_step(config) -> int:
    """Returns the attempts of an explorer step that train batches are cut from."""
    return groups_of_step(config) * (config.algorithm.repeat_times or 1)


def groups_of_step(config) -> int:
    """Returns the groups of an explorer step that train batches are cut from."""
    return taken_groups(config.buffer.batch_size, config.explorer.over_rollout.ratio)


def taken_groups(tasks: int, ratio: float) -> int:
    """Returns the groups that an explorer step takes: the least number that is a share of 1 - ratio of its tasks."""
    return math.ceil(tasks * (1 - Fraction(str(ratio))))


def expert_buffer(algorithm) -> str:
    """Returns the name of the auxiliary buffer for sample_strategy mix."""
    return algorithm.sample_strategy_args.get("sft_dataset_name", MIX.sft_dataset_name)


def share(key: str, ratio: float) -> Fraction:
    """Returns a share as a decimal fraction, so that 0.1 of 30 rows is 3. Raises ConfigError unless 0 < ratio < 1."""
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio < 1:
        raise ConfigError(Problem(key, "needed a number greater than 0 and less than 1.", "For none, leave it switched "
                                  "off (algorithm.sample_strategy=default; replay_buffer.enable=false); "
                                  "algorithm_type=sft trains on demonstrations alone.", found=ratio))
    return Fraction(str(ratio))


def divided(total: int | None, explored: int, group: int, experts: Fraction, replayed: Fraction) -> TrainBatch:
    """Divides: ceil(experts total) expert rows, floor(replayed total / group) replayed groups, the rest new rollouts.

    total: None: of the totals that leave an explorer step's number of new rollouts, `explored`, the one that matches
    the shares best.
    """
    if total is None:
        rest = 1 - experts - replayed
        low, high = (math.floor(replayed * (explored + sign * (group + 1)) / rest / group) for sign in (-1, 1))
        tried = (made for again in range(max(low, 0), high + 1)  # groups replayed, of which there are few
                 for made in _with_fresh(explored, again * group, experts) if made == divided(
                     made.total, explored, group, experts, replayed))
        return min(tried, key=lambda made: abs(made.total - explored / rest))
    shown, again = math.ceil(experts * total), math.floor(replayed * total / group) * group
    return TrainBatch(total - shown - again, again, shown)


def _with_fresh(fresh: int, replayed: int, experts: Fraction) -> Iterator[TrainBatch]:
    """Yields the batches with these rows and ceil(experts total) expert rows, smallest first."""
    rollouts = fresh + replayed
    for total in range(math.floor(rollouts / (1 - experts)), math.floor((rollouts + 1) / (1 - experts)) + 1):
        if total - math.ceil(experts * total) == rollouts:
            yield TrainBatch(fresh, replayed, total - rollouts)


def _refuse_broken_groups(made: TrainBatch, group: int) -> None:
    if not made.replayed:
        raise ConfigError(Problem(f"{REPLAY}.replay_ratio", f"of a train batch of {made.total} rows it is less than "
                                  f"one group of {group} (algorithm.repeat_times), and groups are replayed whole.",
                                  "Raise it, or buffer.train_batch_size."))
    if made.fresh % group:
        raise ConfigError(Problem("buffer.train_batch_size", f"{made.fresh} of its rows are new, which must be a whole "
                                  f"number of groups of {group} (algorithm.repeat_times): groups are replayed whole.",
                                  "Choose one with which it is.", found=made.total))
