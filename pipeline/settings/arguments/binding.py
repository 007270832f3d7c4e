"""What the parameters of a user's function are given: the reply, arguments of the settings, columns of the record.

In this order: what is given by position, the setting's arguments, RESERVED names, columns of the record. A parameter
without a default takes the column of its name, and **others take all; one with a default keeps it, unless an argument
is `${column:NAME}`. The forms of TRL and of veRL are recognised by their names.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ouroboros.pipeline.settings.arguments.users import TOKENS, Signature, column_of, constants
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.signatures import Parameters

EVERY = "*"  # in a list of columns: all of the record
TRUTH = "ground_truth"  # of a reward function; among columns the truth itself, where it is no text
TRUTHS = f"{TRUTH}s"
OF_A_BATCH = ("responses", "completions", "prompts")  # one of these is without a default: it receives all responses
OF_VERL = ("solution_str", TRUTH)  # both: it is veRL's; both in the plural: that of veRL's batch reward manager
SAID_TO_VERL = ("data_source", "extra_info")  # columns that veRL passes where a record has them
OF_TRL = ("trainer_state", "log_extra", "log_metric")
UNNAMED = ("prompts", "completions", TOKENS, *OF_TRL)  # in the **others of a function of TRL's, besides columns
RESERVED = ("responses", "answers", *OF_VERL, *UNNAMED)
EACH, BATCH, VERL, VERL_BATCH = "each", "batch", "verl", "verl batch"  # how a reward function is called


@dataclass(frozen=True)
class Binding:
    """How a function is called. by_position: parameters that its caller gives by position. reserved: RESERVED names
    that it takes. columns: parameter -> column of the record; those in `optional` may be absent. takes_all: all other
    columns, by **. excluded: names that are no columns for it. doubtful: arguments that hide columns of their names."""

    way: str = EACH
    by_position: Sequence[str] = ()
    reserved: Sequence[str] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    optional: Collection[str] = ()
    takes_all: bool = False
    excluded: Collection[str] = ()
    doubtful: Collection[str] = ()

    @property
    def takes_batch(self) -> bool:
        return self.way in (BATCH, VERL_BATCH)

    @property
    def of_verl(self) -> bool:
        return self.way in (VERL, VERL_BATCH)

    def asked(self) -> list[str]:
        """Returns the columns that it needs of a record, EVERY among them where it takes all."""
        return [*([EVERY] if self.takes_all else []), *dict.fromkeys(self.columns.values()),
                *([TRUTH] if {TRUTH, TRUTHS} & {*self.reserved} else [])]

    def taken(self, row: Mapping[str, Any], what: str) -> dict[str, Any]:
        """Returns the columns of a row by parameter. what: the function. Raises ConfigError for one that it lacks."""
        others = {name: value for name, value in row.items() if name not in self.excluded} if self.takes_all else {}
        named = {name: column for name, column in self.columns.items() if column in row or name not in self.optional}
        if lacking := next((column for column in named.values() if column not in row), None):
            raise ConfigError(f"{what} takes the column '{lacking}', and the tasks were read without it: a parameter "
                              "without a default is a column. Name it under `columns` of the set, or give the "
                              "parameter a default, or a value in the arguments of the set.")
        return others | {name: row[column] for name, column in named.items()}

    def lines(self, row: Mapping[str, Any]) -> str:
        """Returns `parameter <- column` of a row's columns."""
        return ", ".join(f"{name} <- {self.columns.get(name, name)}" for name in self.taken(row, "it"))


def required_columns(asked: Iterable[str]) -> list[str]:
    """Returns those of the columns asked for that some record has to have."""
    return [name for name in asked if name not in (EVERY, TRUTH, *SAID_TO_VERL)]


def bind_reward(own: Signature | Parameters, given: Mapping[str, Any]) -> Binding:
    """Returns how a user's reward function is called. given: reward_fn_args, those that it lacks included."""
    names = {*own.required, *own.optional}
    free = [name for name in own.required if name not in given]
    plural = "s" * names.issuperset(f"{name}s" for name in OF_VERL)
    if plural or names.issuperset(OF_VERL):
        way, first, known = VERL_BATCH if plural else VERL, (), (*(name + plural for name in OF_VERL), TOKENS)
    elif not {*OF_A_BATCH}.isdisjoint(free) or [*own.positional[:1]] == [TOKENS]:
        way, first, known = BATCH, (), RESERVED
    else:
        way, first, known = EACH, own.positional[:2], (TOKENS,)
    unnamed = UNNAMED if way == BATCH and own.takes_anything else ()
    reserved = [name for name in known if name in (names | {*unnamed}) - {*given, *first}]
    said = {name + plural: name for name in SAID_TO_VERL
            if way in (VERL, VERL_BATCH) and name + plural in names - {*given}}
    return _bound(own, given, way, first, reserved, said)


def bind_workflow(own: Signature | Parameters, given: Mapping[str, Any], provided: Collection[str]) -> Binding:
    """Returns which columns a user's workflow takes. given: workflow_args. provided: what its caller gives."""
    return _bound(own, given, EACH, (), provided, {})


def _bound(own: Signature | Parameters, given: Mapping[str, Any], way: str, first: Sequence[str],
           reserved: Collection[str], said: Mapping[str, str]) -> Binding:
    names, taken = {*own.required, *own.optional}, {*first, *reserved}
    argued = {name: column for name, value in given.items()
              if (column := column_of(value)) and (name in names or own.takes_anything)}
    columns = {name: said.get(name, name) for name in (*own.required, *said) if name not in {*given} | taken} | argued
    hidden = [name for name in constants(given) if name not in taken and (
        name in own.required or (own.takes_anything and name not in names))]
    absent = [name for name, column in said.items() if name in own.optional or column == SAID_TO_VERL[1]]
    return Binding(way, first, reserved, columns, absent, own.takes_anything, names | taken | {*given}, hidden)
