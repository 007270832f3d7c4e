"""Function help in `ouro config explain`: available functions, and the arguments of the selected ones."""

import textwrap
from typing import Any

from ouroboros.pipeline.check.named_functions import ON_ROLLOUTS, part_taker, reward_taker, workflow_taker
from ouroboros.pipeline.check.user_code import Functions, named
from ouroboros.pipeline.compose.recipe import effective, entries
from ouroboros.pipeline.settings.arguments.base import Taker, Term, bounds, unknown
from ouroboros.pipeline.settings.arguments.base import choices as choices_of
from ouroboros.pipeline.settings.arguments.users import Signature
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import reward_functions
from ouroboros.pipeline.settings.declared import TABLES
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.store.errors import ConfigError, shown

WIDTH = 110
# settings with arguments -> the setting that names the function, where it is not the same key without `_args`
NAMED_BY = {"reward_fn_args": "default_reward_fn_type", "workflow_args": "default_workflow_type"}
PAGE = "docs/algorithms.md has its formula, paper and assumptions"


def choices(part: str) -> list[str]:
    """Lists the functions that a setting (its last part) may name, one line each; empty for other settings."""
    found = TABLES.get(part, {})
    width = max(map(len, found), default=0)
    return [f"  {name:<{width}}  {model.summary()}" for name, model in found.items()]


def arguments(config: Config, stage: str, key: str) -> list[str]:
    """Describes the functions whose arguments `key` holds: purpose, configured arguments, parameters.

    stage: the only stage of interest, if any. key: of the `*_args`, or of one argument.
    """
    path = key.split(".")
    place = next((i for i, part in enumerate(path) if part.endswith("_args")), None)
    part = place is not None and NAMED_BY.get(path[place], path[place].removesuffix("_args"))
    if part not in TABLES:
        return []
    called = chosen(config, stage, path[:place], path[place], part)
    functions, wrong = named(*(name for name in called if ":" in name))
    takers = {name: _taker(part, name, functions) for name in called}
    if lines := unknown(", ".join(called), list(takers.values()), path[place + 1:][:1]) if called else []:
        raise ConfigError(f"'{key}': {lines[0]}")
    made: list[str] = []
    for name, (stages, given) in called.items():
        made += ["", f"{name}{' in ' + ', '.join(stages) if stages else ''}"]
        if own := functions.get(name):
            made += [f"  is called  {name.partition(':')[2]}{own.text}", *([f"  says       {own.doc}"] * bool(own.doc))]
        made += _described(takers[name], given)
        made += [f"  {PAGE}"] if path[0] == "algorithm" and ":" not in name else []
    return [*made, *wrong]


def _taker(part: str, name: str, functions: Functions) -> Taker | None:
    if part == "default_reward_fn_type":
        return reward_taker(name, functions)
    if part == "default_workflow_type":
        return workflow_taker(name, functions)
    return part_taker(part, name, functions)


def chosen(config: Config, stage: str, place: list[str], args: str, part: str) -> dict[str, tuple[list[str], dict]]:
    """Maps each function to (stages that call it, the arguments configured there), without validating them."""
    if place != ["algorithm"]:
        section, of_all = at(config, ".".join(place)), config.buffer.explorer_input
        names = (reward_functions(section, of_all) if args == "reward_fn_args"
                 else [at(section, part) or at(of_all, part)])
        return {name: ([], getattr(section, args)) for name in names if name}
    found: dict[str, tuple[list[str], dict]] = {}
    for entry in (e for e in entries(config) if stage in ("", e["stage_name"])):
        algorithm = effective(config, entry).algorithm
        called = not algorithm.on_given_tokens and not (part in ON_ROLLOUTS and algorithm.on_pairs)
        if called and (name := getattr(algorithm, part)):
            found.setdefault(name, ([], getattr(algorithm, args)))[0].append(f"stage {entry['stage_name']}")
    return found


def _described(taker: Taker | None, given: dict[str, Any]) -> list[str]:
    """Describes a built-in function and its parameters; only the names for a user's function."""
    if taker is None or isinstance(taker, Signature):
        return [f"    {name}, here {shown(given[name])}" for name in (taker.names() if taker else ()) if name in given]
    fields = taker.model_fields
    lines = [f"  is         {taker.summary()}",
             *([f"  is given   {', '.join(taker.columns)}"] if issubclass(taker, Term) and taker.columns else []),
             "  arguments" + ("" if fields else "  none")]
    values = {name: f"{name}={'(needed)' if one.is_required() else shown(one.default)}"
              + (f", here {shown(given[name])}" if name in given else "") for name, one in fields.items()}
    width = max(map(len, values.values()), default=0)
    for name, one in fields.items():
        limit = ", ".join(map(shown, choices_of(one))) or bounds(one)
        lines += textwrap.wrap(f"{one.description}{f' ({limit})' if limit else ''}", WIDTH,
                               initial_indent=f"    {values[name]:<{width}}  ", subsequent_indent=" " * (width + 6))
    return lines
