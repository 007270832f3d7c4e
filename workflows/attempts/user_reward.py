"""Calls a reward function, ours or the user's, and parses its result.

Allowed results for a response: a number (also of numpy or torch), {component: number}, or None where the function does
not apply, which excludes it from the sum, as in TRL. In place of a number a list of them, one for each token that the
policy sampled of the response: rewards of single tokens, whose sum counts as the number. Anything else, including NaN
and infinity, is a failed row. Of a dict of veRL's functions `score` is the reward, `acc` the accuracy, all else notes.
What the parameters are given: pipeline/settings/arguments/binding.py.
"""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, repeat
from numbers import Number
from typing import Any

from ouroboros.operators.reward import Judgement
from ouroboros.pipeline.settings.arguments import binding as bound
from ouroboros.pipeline.settings.arguments.users import TOKENS, Signature, constants
from ouroboros.pipeline.store.foreign_text import is_encodable
from ouroboros.pipeline.store.user_errors import brief
from ouroboros.workflows.attempts.apart import Failed
from ouroboros.workflows.attempts.time_limit import NOT_THEIRS, leaving

Components = dict[str, float]
ABOUT = (str, list, Mapping, type(None))  # what scorers return after the score in a tuple; others are rewards of tokens
CONCURRENT = 32  # maximum number of concurrent calls of an async function
NEEDED = "needed a finite number, a list with one for each token, None, or {component: number}"


@dataclass
class Rule:
    """A reward function with its arguments, retried up to `retries` times when it raises.

    component: the name for a plain number. runner: keeps one event loop for async functions, whose clients must not
    change loops between steps. title: its name in the settings. form: prompt_type of its set, in which TRL's functions
    are given prompts and completions.
    """

    takes_rows = True  # of add_rewards: tokens and columns of each row

    function: Callable[..., Any]
    arguments: dict[str, Any]
    retries: int
    component: str = "reward"
    runner: asyncio.Runner = field(default_factory=asyncio.Runner)
    title: str = ""
    form: str = "plaintext"

    def __call__(
        self, prompts: Sequence[list[dict]], responses: Sequence[str], answers: Sequence[str],
        lengths: Sequence[int | None], tokens: Sequence[list[int]] | None = None,
        columns: Sequence[Mapping[str, Any]] | None = None
    ) -> list[Components | str]:
        """tokens: of the responses those that the policy sampled. columns: of the records of their tasks."""
        found = self.ask(prompts, responses, answers, tokens, columns)
        return [self.read(one, length) for one, length in zip(found, lengths, strict=True)]

    @cached_property
    def _own(self) -> Signature:
        return Signature.of(self.function) or Signature()

    @cached_property
    def binding(self) -> bound.Binding:
        return bound.bind_reward(self._own, self.arguments)

    @property
    def takes_tokens(self) -> bool:
        """Whether the function is given the ids of the sampled tokens: by a parameter of that name, or as in TRL by the
        **arguments of one that takes a batch."""
        return TOKENS in self.binding.reserved

    @property
    def names_tokens(self) -> bool:
        """Whether the function has a parameter for the ids of the sampled tokens."""
        return self.takes_tokens and TOKENS in self._own.names()

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def counts_opened(self) -> bool:
        """Whether the function judges the tag that the prompt opened as part of the response."""
        return getattr(self.function, "counts_opened", False)

    def ask(self, prompts: Sequence[list[dict]], responses: Sequence[str], answers: Sequence[str],
            tokens: Sequence[list[int]] | None = None, columns: Sequence[Mapping[str, Any]] | None = None) -> list[Any]:
        """For each response the function's result, or the exception that it raised. tokens: None: not given.

        Raises ConfigError for a column that the tasks were read without.
        """
        rows = columns or [{}] * len(responses)
        reserved, taken = self._reserved(prompts, responses, answers, tokens, rows), [*map(self._columns, rows)]
        own = constants(self.arguments)
        if self.binding.takes_batch:
            of_rows = {name: [one.get(name) for one in taken] for name in dict.fromkeys(chain(*taken))}
            [found] = self._call([((), of_rows | own | reserved)])
            return _split(found, len(responses))
        by_position = zip(responses, answers, strict=True) if self.binding.way == bound.EACH else repeat(())
        first = [next(by_position) for _ in taken]
        return self._call([(first[at], one | own | {name: values[at] for name, values in reserved.items()})
                           for at, one in enumerate(taken)])

    def _reserved(self, prompts: Sequence[list[dict]], responses: Sequence[str], answers: Sequence[str],
                  tokens: Sequence[list[int]] | None, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The reserved names that the function takes, each with a value for every response."""
        messages = self.form == "messages"
        truths = [row.get(bound.TRUTH, answer) for row, answer in zip(rows, answers, strict=True)]
        known = {
            "prompts": prompts if messages else [turns[-1]["content"] if turns else "" for turns in prompts],
            "completions": [[{"role": "assistant", "content": one}] for one in responses] if messages else responses,
            "responses": responses, "solution_str": responses, "solution_strs": responses, "answers": answers,
            TOKENS: tokens, bound.TRUTH: truths, bound.TRUTHS: truths}
        given = {name: list(known[name]) for name in self.binding.reserved if known.get(name) is not None}
        return given | {name: OF_TRAINER[name] for name in self.binding.reserved if name in bound.OF_TRL}

    def _columns(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """What the function takes of a record; veRL's are given an empty dict in place of no `extra_info`."""
        found = self.binding.taken(row, f"the reward function {self.name}")
        extra = [name for name in ("extra_info", "extra_infos") if self.binding.of_verl and (
            name in found or name in self._own.required)]
        return found | {name: found.get(name) or {} for name in extra}

    def _call(self, calls: list[tuple[tuple, dict]]) -> list[Any]:
        """The results of several calls in order; calls that raised are retried."""
        found = self._once(calls)
        for _ in range(self.retries):
            again = [index for index, one in enumerate(found) if isinstance(one, BaseException)]
            for index, one in zip(again, self._once([calls[index] for index in again]), strict=True):
                found[index] = one
        return found

    def _once(self, calls: list[tuple[tuple, dict]]) -> list[Any]:
        if begin := getattr(self.function, "begin_comparison", None):
            for arguments, named in calls:
                begin(*arguments, **named)
        found = [_attempt(self.function, *call) for call in calls]
        waiting = [index for index, one in enumerate(found) if inspect.isawaitable(one)]
        if waiting:
            answers = _attempt(self.runner.run, (_together([found[index] for index in waiting]),), {})
            if isinstance(answers, BaseException):  # a task that the function started, and did not await, has left
                answers = [answers] * len(waiting)
            for index, one in zip(waiting, answers, strict=True):
                found[index] = one
        return found

    def read(self, found: Any, length: int | None = None) -> Components | str:
        """The components of one result, empty where the function does not apply; or an error line. length: sampled
        tokens of the response, where they are known."""
        if isinstance(found, (WrongAnswer, Failed)):
            return f"{self.name} {found}"
        if isinstance(found, BaseException):
            return f"{self.name} raised {brief(found)}"
        try:
            return {} if found is None else self._components(found, length)
        except Exception as error:  # of a method of what was returned, which is the user's
            return f"{self.name} returned a {type(found).__name__} that cannot be read: {brief(error)}; {NEEDED}"

    def _components(self, found: Any, length: int | None) -> Components | str:
        parts, notes, solved = found, getattr(found, "notes", {}), getattr(found, "solved", None)
        if isinstance(found, tuple) and found and (
                self.binding.of_verl or any(isinstance(one, ABOUT) for one in found)):
            parts = {self.component: found[0]}  # as veRL reads a tuple
        elif self.binding.of_verl and isinstance(found, Mapping):
            if "score" not in found:
                return f"{self.name} returned a dict without score: {_shown(found)}"
            parts, solved = {self.component: found["score"]}, found.get("acc")
            notes = {str(name): str(value) for name, value in found.items()
                     if name not in ("score", "acc") and isinstance(value, (str, Number))}
        elif not isinstance(found, Mapping):
            parts = {self.component: found}
        if not parts:
            return f"{self.name} returned no components; {NEEDED}"
        dense = {name: values for name, value in parts.items() if (values := _several(value)) is not None}
        if wrong := self._wrong_lengths(dense, length):
            return wrong
        numbers = {name: _sum(dense[name]) if name in dense else _number(value)
                   for name, value in parts.items() if value is not None}
        for name, value in numbers.items():
            if not (isinstance(name, str) and is_encodable(name) and math.isfinite(value)):
                which = f"{name}=" if parts is found else ""
                return f"{self.name} returned {which}{_shown(parts[name])}; {NEEDED}"
        if not math.isfinite(sum(numbers.values())):
            return f"{self.name} returned components whose sum is not finite; {NEEDED}"
        solved = None if solved is None else _number(solved)
        accuracy = numbers.get("accuracy", 0.0 if solved is None else solved)
        if not 0 <= accuracy <= 1:
            return f"{self.name} returned accuracy={accuracy}; needed a number from 0 to 1 (solved)"
        tokens = [_sum(each) for each in zip(*dense.values(), strict=True)] if dense else None
        if not all(map(math.isfinite, tokens or ())):
            return f"{self.name} returned components whose sum is not finite for a token; {NEEDED}"
        return Judgement(numbers, notes, tokens, solved)

    def _wrong_lengths(self, dense: dict[str, list[float]], length: int | None) -> str | None:
        """Why lists of a number for each token are not that, or None."""
        for name, values in dense.items():
            if length not in (None, len(values)):
                return (f"{self.name} returned {len(values)} numbers for {name}, and {length} tokens of the response "
                        "were sampled; needed one for each")
        if len(counts := {len(values) for values in dense.values()}) > 1:
            return (f"{self.name} returned lists of {' and '.join(map(str, sorted(counts)))} numbers for one response; "
                    "needed in each one for every token")
        return None


def _unlogged(*_: Any) -> None:
    """In place of TRL's log_extra and log_metric: components and notes are what rows keep."""


OF_TRAINER = {"trainer_state": None, "log_extra": _unlogged, "log_metric": _unlogged}


class WrongAnswer(Exception):
    """A batch function returned something other than one result for each response."""


def taken_arguments(function: Callable, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments among `given` that a function has a parameter for."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return given
    return {name: value for name, value in given.items() if name in parameters}


def _attempt(function: Callable, arguments: tuple, named: dict[str, Any]) -> Any:
    try:
        return function(*arguments, **named)
    except NOT_THEIRS:
        raise
    except BaseException as error:  # user code, which may also exit: fails the row, not the stage
        return error


async def _together(waiting: Sequence[Awaitable]) -> list[Any]:
    """Results of awaitables in order, or their exceptions; at most CONCURRENT run at once."""
    free = asyncio.Semaphore(CONCURRENT)

    async def one(call: Awaitable) -> Any:
        async with free:
            found, left = await leaving(call)
            return left or found

    return await asyncio.gather(*map(one, waiting), return_exceptions=True)


def _split(found: Any, count: int) -> list[Any]:
    """The results of a batch function, one for each of `count` responses."""
    if isinstance(found, BaseException):
        return [found] * count
    several = found.tolist() if hasattr(found, "tolist") else found  # numpy or torch
    if isinstance(several, (list, tuple)) and len(several) == count:
        return list(several)
    had = f"a {type(found).__name__} of {len(several)}" if isinstance(several, (list, tuple)) else _shown(found)
    return [WrongAnswer(f"returned {had} for {count} responses; needed a list with one for each")] * count


def _shown(value: Any) -> str:
    return f"{str(value)[:80]} ({type(value).__name__})"


def _sum(values: Iterable[float]) -> float:
    """The sum, rounded once; NaN where it or a partial sum is not finite."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return math.nan


def _several(value: Any) -> list[float] | None:
    """A list of numbers, or one of numpy or torch, as floats, NaN for what is none; None for anything else."""
    if not isinstance(value, (list, tuple)) and not (hasattr(value, "tolist") and getattr(value, "ndim", 0) == 1):
        return None
    return [_number(one) for one in (value if isinstance(value, (list, tuple)) else value.tolist())]


def _number(value: Any) -> float:
    """A number, or a scalar of numpy or torch, as a float; NaN for anything else."""
    try:
        value = value.item() if hasattr(value, "item") else value
        return float(value) if isinstance(value, Number) else math.nan
    except (TypeError, ValueError, RuntimeError, OverflowError):  # an array, a tensor, a complex number, 10**400
        return math.nan
