"""The base of all argument models, and of each kind of function: strict types, problems with given arguments."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from ouroboros.pipeline.settings.arguments.users import Signature, needed_columns
from ouroboros.pipeline.store.errors import ConfigError, Problem, nearest, shown, wrong_type

WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list",
         dict: "a mapping"}
LONGEST = 10**9  # seconds of a time limit: timers of Python and sockets hold 9e9
BOUNDS = {"greater_than": ("gt", "greater than"), "greater_than_equal": ("ge", "at least"),
          "less_than": ("lt", "less than"), "less_than_equal": ("le", "at most")}  # by pydantic's types of errors


class Arguments(BaseModel):
    """The arguments that a configuration may give one named function; the docstring's first line says what it is.

    Each kind of function has its own class below, with the facts that others ask of it.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)
    name: ClassVar[str] = ""  # in settings, where it is not that of the class in snake_case
    takes_anything: ClassVar[bool] = False  # as a user's function with **others does

    @classmethod
    def summary(cls) -> str:
        """Returns a one-line description of the function."""
        return cls.__doc__.partition("\n")[0]

    @classmethod
    def bind(cls, name: str, given: dict[str, Any], key: str) -> Self:
        """Returns the arguments of the function `name`: `given` merged over defaults. key: the setting with them.

        Raises ConfigError with every problem.
        """
        if found := problems(key, name, [cls], given):
            raise ConfigError(" ".join(found))
        return cls.model_validate(given)

    @classmethod
    def names(cls) -> Sequence[str]:
        return list(cls.model_fields)

    @classmethod
    def needed(cls) -> Sequence[str]:
        return [name for name, field in cls.model_fields.items() if field.is_required()]

    @classmethod
    def wrong_values(cls, key: str, given: dict[str, Any]) -> list[Problem]:
        """Lists values of the wrong type or out of bounds; unknown names are ignored."""
        try:
            cls.model_validate({name: value for name, value in given.items() if name in cls.model_fields})
        except ValidationError as error:
            return [problem_of(one, ".".join(map(str, (key, *one["loc"]))), *declared(cls, one["loc"]))
                    for one in error.errors(include_url=False) if one["type"] != "missing"]
        return []


class Term(Arguments):
    """A term of the objective: a policy loss, a KL to the reference, the entropy. columns: what it takes by name."""

    columns: ClassVar[tuple[str, ...]] = ()


class Loss(Term):
    """A policy loss: its fields are the arguments, the parameters of `__call__` its columns (operators/losses).

    compares_pairs: rows 2k and 2k + 1 of a micro-batch are the chosen and the rejected response of a pair.
    scores_responses: by a model with one number for each, no policy. needs_teacher: the log-probs of its likeliest
    tokens. types: the algorithm types that always have it, whatever else is set, and what they train on. aggregation:
    its own (operators/aggregation.py). chooses_tokens: `choose` says which, over the whole batch
    (operators/selection.py). estimates_kl: it is given `estimated_kl`, of the whole batch too.
    """

    compares_pairs: ClassVar[bool] = False
    scores_responses: ClassVar[bool] = False
    needs_teacher: ClassVar[bool] = False
    types: ClassVar[tuple[tuple[str, str], ...]] = ()
    aggregation: ClassVar[str] = "token-mean"
    chooses_tokens: ClassVar[bool] = False
    estimates_kl: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.columns = needed_columns(cls)

    @abstractmethod
    def __call__(self) -> Any:
        """Returns the loss of each action token, [N], and a dict of statistics, [N] each."""


class Advantage(Arguments):
    """An advantage: its fields are the arguments, `__call__` takes a batch (operators/advantages).

    compares_groups: undefined or without its baseline in a group of one. compares_states: turns that begin in the same
    state. chooses_rows: it selects the rows to train on by dropping others. reads: the columns of the batch that are
    computed for it: `values` of a critic, `teacher_logprobs`, `entropies` of the policy before the step and its
    `mean_scores`, the mean of p (entropy + log p) over the distribution of a token,
    `baseline_reward` of a greedy response.
    reads_components: of the reward, and not their sum. reads_steps: what single turns earned (step_reward).
    reads_tokens: what single tokens earned (token_rewards). keeps_state: `__call__` also takes the algorithm's state, a
    dict that checkpoints keep, and changes it.
    """

    compares_groups: ClassVar[bool] = False
    compares_states: ClassVar[bool] = False
    chooses_rows: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ()
    reads_components: ClassVar[bool] = False
    reads_steps: ClassVar[bool] = False
    reads_tokens: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, batch: Any) -> Any:
        """Returns a table of experience_id and advantage."""


class Reward(Arguments):
    """A reward function. reads_truths: it judges only what has a truth of its form. reports_accuracy: it says whether a
    task is solved. components: the names of what it adds up, () where arguments decide. columns: of the record that
    it takes; `*`: all."""

    reads_truths: ClassVar[bool] = False
    reports_accuracy: ClassVar[bool] = False
    components: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[tuple[str, ...]] = ()


class Workflow(Arguments):
    """A workflow. acts_by_itself: attempts have their own processes. rewards_whole: rewards follow from more than the
    last response. tells_states: trajectories have a state (state_hash)."""

    acts_by_itself: ClassVar[bool] = False
    rewards_whole: ClassVar[bool] = False
    tells_states: ClassVar[bool] = False


class Selector(Arguments):
    """A selector of tasks. feature_keys: how many it reads at least, and at most (None: any number). reads_rates: of
    the experience of earlier steps."""

    feature_keys: ClassVar[tuple[int, int | None]] = (0, 0)
    reads_rates: ClassVar[bool] = False


class Operator(Arguments):
    """An operator on experience. changes_reward: the sum alone."""

    changes_reward: ClassVar[bool] = False


Taker = type[Arguments] | Signature  # what accepts arguments: one of our functions, or a user's
Model = TypeVar("Model", bound=Arguments)


def described(model: type[Model], summary: str, **facts: Any) -> type[Model]:
    """Returns a model with the same arguments, or none, for another function. facts: those of its kind."""
    return type(model.__name__, (model,), {"__doc__": summary, "__module__": model.__module__, **facts})


def problems(key: str, name: str, takers: Sequence[Taker | None], given: dict[str, Any]) -> list[Problem]:
    """Lists the problems of arguments that several functions are called with, each with those that it has.

    key: the setting that holds them. name: of the functions. takers: None for a function that is not known here.
    """
    known = [taker for taker in takers if taker]
    missing = dict.fromkeys(need for taker in known for need in taker.needed() if need not in given)
    return [*(Problem(key, line) for line in unknown(name, takers, given)),
            *(Problem(key, f"'{name}' needs the argument '{need}'.") for need in missing),
            *dict.fromkeys(line for taker in known for line in taker.wrong_values(key, given))]


def unknown(name: str, takers: Sequence[Taker | None], given: Sequence[str] | dict[str, Any]) -> list[str]:
    """Lists given arguments that no function has, one line each; empty if one of the functions is unknown."""
    if not all(takers) or any(taker.takes_anything for taker in takers):
        return []
    has = dict.fromkeys(one for taker in takers for one in taker.names())
    return [f"'{name}' has no argument '{one}'.{nearest(one, has)} It has: {', '.join(has) or 'none'}."
            for one in given if one not in has]


def choices(field: FieldInfo) -> tuple:
    """Returns the values allowed for a field with choices; empty for any other field."""
    kinds = [field.annotation, *get_args(field.annotation)]
    found = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())
    return (*found, None) if found and type(None) in kinds else found


def bound(field: FieldInfo, name: str) -> float | None:
    """Returns the bound `ge`, `gt` or `le` of a field, None without one."""
    return next((getattr(one, name) for one in field.metadata if hasattr(one, name)), None)


def bounds(field: FieldInfo) -> str:
    """Formats `at least 0 and at most 1`; empty without bounds."""
    found = ((word, bound(field, sign)) for sign, word in BOUNDS.values())
    return " and ".join(f"{word} {limit}" for word, limit in found if limit is not None)


def declared(kind: Any, place: Sequence[Any]) -> tuple[Any, FieldInfo | None]:
    """Returns the type of the value at a place in a model, and the field that it is or belongs to."""
    field = None
    for part in place:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields[part]
            kind = field.annotation
        else:
            of = next((k for k in types(kind) if get_origin(k) in (list, dict)), None)
            kind = get_args(of)[-1] if of else Any
    return kind, field


def problem_of(error: dict[str, Any], key: str, kind: Any, field: FieldInfo) -> Problem:
    """Returns the problem for one of pydantic's errors. kind, field: as `declared` returns them."""
    value, reason = error["input"], error["type"]
    if reason == "too_large":
        return Problem(key, f"needed a number below 2^63, found one of {error['ctx']['digits']} digits.")
    if reason == "value_error":
        return Problem(key, f"{error['ctx']['error']}.", found=value)
    if reason == "finite_number" or value != value:  # nan is below a bound that allows infinity
        return Problem(key, "needed a finite number.", found=value)
    if options := choices(field):
        return not_one_of(key, value, options)
    if reason in BOUNDS:
        return Problem(key, f"needed {bounds(field)}.", found=value)
    return wrong_type(value, " or ".join(WORDS[get_origin(k) or k] for k in types(kind)), key)


def not_one_of(key: str, value: Any, options: Iterable[Any], more: str = "", advice: str = "") -> Problem:
    """Returns the problem of a value that is none of the options, with the nearest first, as there may be fifty.
    more: what else may be given. advice: what is meant, where that is known."""
    names = [shown(one) for one in options]
    near = "" if advice else nearest(str(value), names).strip()
    return Problem(key, f"{near} Needed one of {', '.join(names)}{more}." if near else
                   f"needed one of {', '.join(names)}{more}.", advice, found=value)


@cache
def types(kind: Any) -> list[Any]:
    """Returns the types that a setting or an argument may have besides null."""
    return [one for one in (get_args(kind) if isinstance(kind, UnionType) else (kind,)) if one is not type(None)]
