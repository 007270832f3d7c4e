"""Parts of an algorithm by name: one of our tables, or the user's `package.module:function` or `package.module:Class`.

Results of user functions are validated, because a number of the wrong shape would be broadcast and trained on. Ours are
covered by tests.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor

from ouroboros.operators.arguments import arguments
from ouroboros.pipeline.settings.arguments.base import Arguments
from ouroboros.pipeline.settings.declared import TABLES
from ouroboros.pipeline.store.errors import ConfigError, DataError, pick
from ouroboros.pipeline.store.user_calls import calling
from ouroboros.pipeline.store.user_errors import load_dotted

LISTS = (pa.list_(pa.float64()), pa.list_(pa.float32()))


def chosen(table: dict[str, Callable], name: str, key: str) -> Callable:
    """The function that the setting `key` names.

    Raises ConfigError for an unknown name, a module that does not import, or an object that is not callable.
    """
    if ":" not in name:
        return pick(table, name, key)
    function = load_dotted(name)
    if not callable(function):
        raise ConfigError(f"{key}={name} is of type {type(function).__name__}; needed a function.")
    return function


def chosen_advantage(name: str, given: dict[str, Any]) -> Callable:
    """The advantage that algorithm.advantage_fn names, with arguments `given`, as in chosen_loss.

    Calling the user's raises DataError when the result is not a table of advantages.
    """
    function, key = _with_arguments("advantage_fn", name, given), "algorithm.advantage_fn"
    if ":" not in name:
        return function

    @functools.wraps(function)
    def checked(batch: pa.Table) -> pa.Table:
        try:
            with calling(name):
                found = function(batch)
        except KeyError as error:
            if "does not exist in schema" not in str(error):  # pyarrow's message for a missing column
                raise
            raise DataError(f"{key}={name}: {error.args[0]!s}. The batch has the columns "
                            f"{', '.join(batch.column_names)}.") from error
        return _advantages(found, batch, f"{key}={name}")

    return checked


def chosen_loss(name: str, given: dict[str, Any]) -> Callable:
    """The loss that algorithm.policy_loss_fn names, with arguments `given`: an instance of its class, or the user's
    function.

    Calling the user's raises ConfigError when the result is not (loss [N], statistics of [N]).
    """
    key = "algorithm.policy_loss_fn"
    found = _with_arguments("policy_loss_fn", name, given)
    return _per_token(found, name, key, lambda found: isinstance(found, tuple) and len(found) == 2 and
                      isinstance(found[1], dict) and [found[0], *found[1].values()],
                      "(loss [N], {name of a statistic: [N]}), one number a token", learns=True)


def chosen_estimate(table: dict[str, Callable], name: str, key: str) -> Callable:
    """As `chosen`, for functions that return one number per token: KL estimates, entropy losses."""
    return _per_token(chosen(table, name, key), name, key, lambda found: [found], "a tensor [N], one number a token")


def _with_arguments(part: str, name: str, given: dict[str, Any]) -> Callable:
    """The function that the setting `part` of an algorithm names, with arguments `given` merged over its defaults."""
    found, key = chosen(TABLES[part], name, f"algorithm.{part}"), f"algorithm.{part}_args"
    if inspect.isclass(found) and issubclass(found, Arguments):
        return found.bind(name, given, key)
    return functools.partial(found, **arguments(part, name, found, given, key))


def _per_token(function: Callable, name: str, key: str, tensors: Callable, needed: str,
               learns: bool = False) -> Callable:
    """The function; a user's with a check that each of `tensors(result)` has the shape of a column.

    learns: the first tensor must have a gradient where one is required.
    """
    if ":" not in name:
        return function

    @functools.wraps(function)
    def checked(**given: Any):
        with calling(name):
            found = function(**given)
        length = next(len(column) for column in given.values() if isinstance(column, Tensor) and column.ndim == 1)
        parts = tensors(found)
        if not parts or not all(isinstance(part, Tensor) and part.shape == (length,) for part in parts):
            had = [str(tuple(part.shape)) if isinstance(part, Tensor) else type(part).__name__
                   for part in parts or [found]]
            raise ConfigError(f"{key}={name} answered with {', '.join(had)} for N = {length} tokens; needed {needed}.")
        if learns and not parts[0].requires_grad and any(
                isinstance(one, Tensor) and one.requires_grad for one in given.values()):
            raise ConfigError(f"{key}={name} answered with a value that no gradient reaches: it was computed from "
                              "detached tensors, or not from what has a gradient. Nothing would be learnt.")
        return found

    return checked


def _advantages(found: Any, batch: pa.Table, what: str) -> pa.Table:
    """The result of the user's advantage function, its numbers as float64."""
    if not isinstance(found, pa.Table) or not {"experience_id", "advantage"} <= set(found.column_names):
        had = ", ".join(found.column_names) if isinstance(found, pa.Table) else type(found).__name__
        raise DataError(f"{what} answered with {had}; needed a pyarrow.Table with the columns experience_id and "
                        "advantage.")
    if strangers := set(found["experience_id"].to_pylist()) - set(batch["experience_id"].to_pylist()):
        raise DataError(f"{what} answered with experience_id {min(strangers, key=str)!r}, which is not in its batch.")
    kind = found["advantage"].type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or kind in LISTS):
        raise DataError(f"{what} answered with advantages of type {kind}; needed numbers, or lists of them.")
    if kind in LISTS:
        _refuse_lengths(found, batch, what)
    flat = pc.list_flatten(found["advantage"]) if kind in LISTS else found["advantage"]
    values = flat.cast(pa.float64()).to_pylist()
    if wrong := [value for value in values if value is None or value != value or abs(value) == float("inf")]:
        raise DataError(f"{what} answered with {wrong[0]} for {len(wrong)} of {len(values)} advantages; needed finite "
                        "numbers. A row that it leaves out is not trained on.")
    numbers = found["advantage"].cast(pa.list_(pa.float64()) if kind in LISTS else pa.float64())
    return found.set_column(found.column_names.index("advantage"), "advantage", numbers)


def _refuse_lengths(found: pa.Table, batch: pa.Table, what: str) -> None:
    """Raises DataError for a list without exactly one number per response token of its row."""
    needed = dict(zip(batch["experience_id"].to_pylist(), map(len, batch["action_mask"].to_pylist()), strict=True))
    for id_, given in zip(found["experience_id"].to_pylist(), found["advantage"].to_pylist(), strict=True):
        if given is None or len(given) != needed[id_]:
            had = 0 if given is None else len(given)
            raise DataError(f"{what} answered with {had} advantages for row {id_}, whose response has {needed[id_]} "
                            "tokens; needed one for each, or one number for the row.")
