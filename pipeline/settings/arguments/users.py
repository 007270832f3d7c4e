"""Signatures of user functions, as inspected in the process that imports them (stages/own_code.py), and the columns
that a function takes."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from ouroboros.pipeline.store.errors import Problem
from ouroboros.pipeline.store.signatures import Parameters

FACTS = ("compares_groups", "chooses_rows")  # what a user's advantage may declare as attributes
GROUPS = ("group_id", "task_id")  # columns by which an advantage can compare rollouts
STEPS = ("step_reward",)  # columns of what a turn earned by itself
WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text", "list": "a list",
         "dict": "a mapping", "None": "null"}  # plain types of annotations
TOKENS = "completion_ids"  # parameter of a reward function: ids of the sampled tokens, named as in TRL


@dataclass(frozen=True)
class Signature:
    """required, optional: names of the parameters without and with a default, in order.

    positional: those that are given by position, and only_positional: by position alone, below its decorators, unless
    these take *others.
    takes_others, takes_anything: whether it has *others and **anything. text, doc: as written, and the first line of
    its docstring. facts: attributes of the function that declare what base.Arguments does, those of FACTS.
    reads_groups, reads_steps: whether its code names one of GROUPS, of STEPS; None: not looked for. types: parameter ->
    the plain types that its annotation allows; others have no entry. undescribed: of a tool, what the model is not
    told.
    """

    required: Sequence[str] = ()
    optional: Sequence[str] = ()
    positional: Sequence[str] = ()
    only_positional: Sequence[str] = ()
    takes_others: bool = False
    takes_anything: bool = False
    text: str = ""
    doc: str = ""
    facts: Mapping[str, bool] = field(default_factory=dict)
    reads_groups: bool | None = None
    reads_steps: bool | None = None
    types: Mapping[str, Sequence[str]] = field(default_factory=dict)
    undescribed: Sequence[str] = ()

    @classmethod
    def of(cls, function: Callable) -> Self | None:
        """Returns the signature; None for a callable that Python cannot inspect, such as one in C."""
        try:
            found, outer = (inspect.signature(function, follow_wrapped=inner) for inner in (True, False))
        except (TypeError, ValueError):
            return None
        named = [p for p in found.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        kinds = {p.name: p.kind for p in outer.parameters.values()}
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        takes_others = inspect.Parameter.VAR_POSITIONAL in kinds.values()
        return cls(
            [p.name for p in named if p.default is p.empty], [p.name for p in named if p.default is not p.empty],
            [name for name, kind in kinds.items() if kind in by_position] if not takes_others else
            [p.name for p in named if p.kind in by_position],
            [name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_ONLY],
            takes_others,
            any(p.kind is p.VAR_KEYWORD for p in found.parameters.values()), str(found),
            (inspect.getdoc(function) or "").partition("\n")[0],
            {name: getattr(function, name) for name in FACTS if hasattr(function, name)},
            types={p.name: kinds for p in named if (kinds := _plain(p.annotation))})

    @classmethod
    def of_class(cls, model: type) -> Self:
        """Returns what a user's class of base.Loss or base.Advantage takes and declares."""
        doc, taken = (inspect.getdoc(model) or "").partition("\n")[0], needed_columns(model)
        text = ", ".join((*taken, *(f"{name}={one.default!r}" for name, one in model.model_fields.items())))
        return cls(taken, list(model.model_fields), text=f"({text})", doc=doc,
                   facts={name: getattr(model, name) for name in FACTS if hasattr(model, name)},
                   reads_steps=getattr(model, "reads_steps", False))

    @property
    def compares_groups(self) -> bool:
        """Returns what is declared of an advantage; without a declaration, whether it reads what groups are."""
        return self.facts.get("compares_groups", bool(self.reads_groups))

    def names(self) -> Sequence[str]:
        return [*self.required, *self.optional]

    def needed(self) -> Sequence[str]:
        return self.required

    def wrong_values(self, key: str, given: dict[str, Any]) -> list[Problem]:
        """Lists values whose type the annotation of their parameter does not have; all others are the function's."""
        return [Problem(f"{key}.{name}", f"needed {' or '.join(WORDS[kind] for kind in kinds)}, as the function says.",
                        found=value) for name, value in constants(given).items() if (kinds := self.types.get(name))
                and not any(_is_a(value, kind) for kind in kinds)]

    def without(self, *given: str) -> Self:
        """Returns the signature without these parameters, which the caller provides."""
        return replace(self, required=[name for name in self.required if name not in given],
                       optional=[name for name in self.optional if name not in given])

    def relaxed(self) -> Self:
        """Returns the signature with all parameters optional: what is required may be a column of the record."""
        return replace(self, required=(), optional=self.names())


def column_of(value: Any) -> str | None:
    """Returns NAME of an argument `${column:NAME}`, None for any other."""
    found = re.fullmatch(r"\$\{column:\s*(.+?)\s*\}", value) if isinstance(value, str) else None
    return found and found[1]


def constants(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments that are no columns."""
    return {name: value for name, value in given.items() if column_of(value) is None}


def needed_columns(function: Callable) -> tuple[str, ...]:
    """Returns the parameters of a function without a default, in order: the columns that it takes.

    Of a class those of its instances. An argument that a functools.partial binds by name counts as having a default.
    """
    called = partial(function.__call__, None) if inspect.isclass(function) else function
    return tuple(p.name for p in inspect.signature(called).parameters.values() if p.default is p.empty)


def _plain(annotation: Any) -> list[str]:
    """Returns the names of the plain types that an annotation allows, as a text or a type; empty for any other."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    kinds = [part.partition("[")[0].strip() for part in re.sub(r"\[[^\[\]]*\]", "", text).split("|")]
    return kinds if set(kinds) <= WORDS.keys() else []


def _is_a(value: Any, kind: str) -> bool:
    if kind in ("int", "float"):
        return type(value) is int or (type(value) is float and (kind == "float" or value.is_integer()))
    return type(value).__name__ == {"None": "NoneType"}.get(kind, kind)


def provided(workflow: Signature | Parameters) -> Sequence[str]:
    """Returns the parameters of a workflow that its caller provides: by name, and the first one unless it is an agent
    with a parameter `endpoint`."""
    names = workflow.names()
    by_name = ("task", "toolbox", "auxiliary_models")
    return (*by_name, "endpoint") if "endpoint" in names else (*names[:1], *by_name, "model")


def wrong_first(workflow: Signature) -> str | None:
    """Returns why a workflow cannot be given its prompt, by position, or with a parameter `endpoint` its task."""
    if workflow.takes_others or "endpoint" in workflow.names():
        return None
    if not workflow.positional:
        return "takes no argument by position; needed a first one, the prompt."
    if (first := workflow.positional[0]) in ("task", "model", "toolbox", "auxiliary_models"):
        return (f"has '{first}' as its first parameter, which is the prompt, and '{first}' is given by its name too; "
                "needed f(prompt, task, ...), or f(task, endpoint) for an agent that asks its endpoint.")
    return None
