"""Selects the tasks of an explorer step from the training sets: pure functions of the step number.

Tasks are numbered over all sets. An epoch has as many draws as there are tasks. The set for each draw follows from a
permutation of all rows that depends only on (seed, epoch), so every set is used in proportion to its size; which task
it provides is up to its own selector. No state: a resumed run continues where it stopped (selectors that read
experience compute their orders from the rows of earlier steps: stages/explorer/selections.py). Shuffled sets together
are a permutation of all rows per epoch, and the epochs are cut every batch_size, so a batch may span two; a single set
keeps its own selector's order.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle
from types import MappingProxyType
from typing import TYPE_CHECKING

from ouroboros.pipeline.job.schedule import task_order
from ouroboros.pipeline.store.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Selector:
    """One set: number of tasks, selector_type, seed. order: of offline_easy2hard, its tasks in the order of use."""

    count: int
    selector_type: str
    seed: int
    order: tuple[int, ...] = ()


def select(sets: Sequence[Selector], batch_size: int, explorer_step: int, seed: int,
           orders: Mapping[int, Sequence[int]] = MappingProxyType({})) -> list[int]:
    """Returns the numbers of the `batch_size` tasks of explorer step s, in order of use.

    seed: of the mixing. A `random` set is sampled with (its seed, step), without repetition within the step as long as
    it has enough tasks. orders: index of a set whose order depends on what was explored -> its tasks in the order in
    which this step takes them. Raises ConfigError when there is no task.
    """
    sets = tuple(sets)
    total = sum(one.count for one in sets)
    if total < 1:
        raise ConfigError("there is no task to explore: the sets to train on are empty.")
    first = (explorer_step - 1) * batch_size
    begins = _begins(sets)
    chosen: list[int] = []
    taken = [0] * len(sets)  # tasks of each set whose order is of this step
    epoch = first // total
    while len(chosen) < batch_size:
        owners, numbers = _epoch(sets, epoch, seed)
        begin = max(first - epoch * total, 0)
        part = slice(begin, begin + batch_size - len(chosen))
        for owner, number in zip(owners[part].tolist(), numbers[part].tolist(), strict=True):
            if owner in orders or sets[owner].selector_type == "random":
                place, taken[owner] = taken[owner], taken[owner] + 1
                number = begins[owner] + (int(orders[owner][place % sets[owner].count]) if owner in orders else
                                          _draw(sets[owner], explorer_step, place))
            chosen.append(number)
        epoch += 1
    return chosen


def tasks_of_step(count: int, batch_size: int, explorer_step: int, seed: int) -> list[int]:
    """Returns `select` from one shuffled set of `count` tasks: every task occurs once per epoch."""
    return select([Selector(count, "shuffle", seed)], batch_size, explorer_step, seed)


def redraw(
    sets: Sequence[Selector], owners: Sequence[int], asked: Collection[int], explorer_step: int, round_: int
) -> list[int]:
    """Returns the numbers of fresh tasks that replace some of explorer step s, in replacement round 1, 2, ...

    owners: the set of each task. asked: numbers already used by the step; they are reused when a set has no others. The
    order within every set follows from (its seed, step, round), whatever its selector, so that the tasks of later steps
    are unaffected.
    """
    begins = _begins(sets)
    waiting = {owner: cycle(_fresh_first(sets[owner], begins[owner], asked, explorer_step, round_))
               for owner in set(owners)}
    return [next(waiting[owner]) for owner in owners]


def _fresh_first(one: Selector, begin: int, asked: Collection[int], explorer_step: int, round_: int) -> list[int]:
    import numpy as np

    order = np.random.default_rng([one.seed, explorer_step, round_]).permutation(one.count) + begin
    used = np.isin(order, np.fromiter(asked, int, len(asked)))
    return [*order[~used].tolist(), *order[used].tolist()]


def _begins(sets: Sequence[Selector]) -> list[int]:
    """Returns the number of the first task of every set."""
    return [sum(one.count for one in sets[:k]) for k in range(len(sets))]


@lru_cache(2)  # the steps of an epoch share it
def _epoch(sets: tuple[Selector, ...], epoch: int, seed: int) -> tuple["np.ndarray", "np.ndarray"]:
    """Returns set and task of every draw of an epoch; the task of a `random` set depends on the step."""
    import numpy as np

    owners = np.repeat(np.arange(len(sets)), [one.count for one in sets])
    if len(sets) > 1:
        owners = owners[task_order(len(owners), epoch, seed)]
    numbers = np.empty_like(owners)
    for index, begin in enumerate(_begins(sets)):
        numbers[owners == index] = begin + _order(sets[index], epoch)
    return owners, numbers


def _order(one: Selector, epoch: int) -> "np.ndarray":
    import numpy as np

    if one.order:
        return np.array(one.order)
    return task_order(one.count, epoch, one.seed) if one.selector_type == "shuffle" else np.arange(one.count)


def _draw(one: Selector, explorer_step: int, number: int) -> int:
    """Returns the `number`-th task of this step; beyond the set's size another permutation begins."""
    round_, place = divmod(number, one.count)
    return int(_order_of_step(one, explorer_step, round_)[place])


@lru_cache(4)  # the draws of a step share it
def _order_of_step(one: Selector, explorer_step: int, round_: int) -> "np.ndarray":
    return task_order(one.count, explorer_step * 2**16 + round_, one.seed)
