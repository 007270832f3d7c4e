"""Calls a reward function, ours or the user's, and parses its result.

Allowed results for a response: a number (also of numpy or torch), {component: number}, or None where the function does
not apply, which excludes it from the sum, as in TRL. In place of a number a list of them, one for each token that the
policy sampled of the response: rewards of single tokens, whose sum counts as the number. Anything else, including NaN
and infinity, is a failed row.
"""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Number
from typing import Any

from ouroboros.operators.reward import Judgement
from ouroboros.pipeline.settings.arguments.users import TOKENS, batch_parameters
from ouroboros.pipeline.store.foreign_text import is_encodable
from ouroboros.pipeline.store.user_errors import brief
from ouroboros.workflows.attempts.apart import Failed
from ouroboros.workflows.attempts.time_limit import NOT_THEIRS, leaving

Components = dict[str, float]
CONCURRENT = 32  # maximum number of concurrent calls of an async function
NEEDED = "needed a finite number, a list with one for each token, None, or {component: number}"


@dataclass
class Rule:
    """A reward function with its arguments, retried up to `retries` times when it raises.

    component: the name for a plain number. runner: keeps one event loop for async functions, whose clients must not
    change loops between steps. title: its name in the settings.
    """

    function: Callable[..., Any]
    arguments: dict[str, Any]
    retries: int
    component: str = "reward"
    runner: asyncio.Runner = field(default_factory=asyncio.Runner)
    title: str = ""

    def __call__(
        self, prompts: Sequence[list[dict]], responses: Sequence[str], answers: Sequence[str],
        lengths: Sequence[int | None], tokens: Sequence[list[int]] | None = None
    ) -> list[Components | str]:
        """tokens: of the responses those that the policy sampled, where `takes_tokens`."""
        found = self.ask(prompts, responses, answers, tokens)
        return [self.read(one, length) for one, length in zip(found, lengths, strict=True)]

    @property
    def takes_tokens(self) -> bool:
        """Whether the function is given the ids of the sampled tokens: by a parameter of that name, or as in TRL by the
        **arguments of one that takes a batch."""
        takes_anything = any(one.kind is one.VAR_KEYWORD for one in _parameters(self.function).values())
        return self.names_tokens or (takes_anything and bool(self.of_batch) and TOKENS not in self.arguments)

    @property
    def names_tokens(self) -> bool:
        """Whether the function has a parameter for the ids of the sampled tokens."""
        return TOKENS in _parameters(self.function) and TOKENS not in self.arguments

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def counts_opened(self) -> bool:
        """Whether the function judges the tag that the prompt opened as part of the response."""
        return getattr(self.function, "counts_opened", False)

    @property
    def of_batch(self) -> dict[str, str]:
        """Parameter -> its content, for a function that takes all responses at once (settings/arguments/users.py)."""
        return batch_parameters([name for name in required_parameters(self.function) if name not in self.arguments])

    def ask(self, prompts: Sequence[list[dict]], responses: Sequence[str], answers: Sequence[str],
            tokens: Sequence[list[int]] | None = None) -> list[Any]:
        """For each response the function's result, or the exception that it raised. tokens: None: not given."""
        given = {"prompts": list(prompts), "responses": list(responses), "answers": list(answers)}
        taken, takes = self.of_batch, tokens is not None and self.takes_tokens
        if not taken:
            own = [{TOKENS: one} for one in tokens or ()] if takes else [{}] * len(responses)
            return self._call([((response, answer), self.arguments | more)
                               for response, answer, more in zip(responses, answers, own, strict=True)])
        more = {TOKENS: list(tokens or ())} if takes else {}
        [found] = self._call([((), self.arguments | more | {name: given[what] for name, what in taken.items()})])
        return _split(found, len(responses))

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
        parts = found if isinstance(found, Mapping) else {self.component: found}
        if not parts:
            return f"{self.name} returned no components; {NEEDED}"
        dense = {name: values for name, value in parts.items() if (values := _several(value)) is not None}
        for name, values in dense.items():
            if length not in (None, len(values)):
                return (f"{self.name} returned {len(values)} numbers for {name}, and {length} tokens of the response "
                        "were sampled; needed one for each")
        if len(counts := {len(values) for values in dense.values()}) > 1:
            return (f"{self.name} returned lists of {' and '.join(map(str, sorted(counts)))} numbers for one response; "
                    "needed in each one for every token")
        numbers = {name: _sum(dense[name]) if name in dense else _number(value)
                   for name, value in parts.items() if value is not None}
        for name, value in numbers.items():
            if not (isinstance(name, str) and is_encodable(name) and math.isfinite(value)):
                which = f"{name}=" if parts is found else ""
                return f"{self.name} returned {which}{_shown(parts[name])}; {NEEDED}"
        if not math.isfinite(sum(numbers.values())):
            return f"{self.name} returned components whose sum is not finite; {NEEDED}"
        if not 0 <= numbers.get("accuracy", 0) <= 1:
            return f"{self.name} returned accuracy={numbers['accuracy']}; needed a number from 0 to 1 (solved)"
        if dense:
            tokens = [_sum(each) for each in zip(*dense.values(), strict=True)]
            return Judgement(numbers, tokens=tokens) if all(map(math.isfinite, tokens)) else (
                f"{self.name} returned components whose sum is not finite for a token; {NEEDED}")
        return Judgement(numbers, parts.notes) if isinstance(parts, Judgement) else numbers


class WrongAnswer(Exception):
    """A batch function returned something other than one result for each response."""


def taken_arguments(function: Callable, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments among `given` that a function has a parameter for."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return given
    return {name: value for name, value in given.items() if name in parameters}


def required_parameters(function: Callable) -> list[str]:
    """Names of the parameters without a default; empty for a callable without a readable signature."""
    by_name = (one for one in _parameters(function).values() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD))
    return [one.name for one in by_name if one.default is one.empty]


def _parameters(function: Callable) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


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
