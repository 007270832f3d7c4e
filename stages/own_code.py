"""Imports the functions that a configuration names, once, before anything runs: errors there must not come hours later.

    python -m stages.own_code request.json answer.json

Started by `ouro run` and `ouro config check` (pipeline/own_code.py). Answers, name by name, with lists of problems; the
first that is not answered ended this process. It is no stage of the plan: it makes nothing that another reads.
"""

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from operators.arguments import needed_columns
from pipeline import files
from pipeline.errors import ConfigError, load_dotted
from pipeline.own_code import REWARD
from pipeline.parts import wrong_parameters
from pipeline.reward_rules import wrong_reward


def problems(question: dict[str, Any]) -> list[str]:
    """What is wrong with a function: it does not import, is none, or has parameters that its caller does not know."""
    name, part = question["name"], question["part"]
    try:
        function = load_dotted(name)
    except ConfigError as error:
        return [str(error)]
    if not callable(function):
        return [f"'{name}' is a {type(function).__name__}; needed a function."]
    if part is None:
        return []
    if part == REWARD:
        return _reward_problems(name, function)
    try:
        required = needed_columns(function)
    except (TypeError, ValueError):  # a callable of C, whose parameters nobody can tell
        return []
    return wrong_parameters(part, required, question["algorithm"])


def _reward_problems(name: str, function: Callable) -> list[str]:
    try:
        found = inspect.signature(function, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):  # as above
        return []
    taken = [one.name for one in found if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return list(filter(None, [wrong_reward(name, taken, any(one.kind is one.VAR_POSITIONAL for one in found))]))


def main(request: str, answer: str) -> None:
    found: list[list[str]] = []
    for question in files.read_json(Path(request)):
        found.append(problems(question))
        files.write_json(Path(answer), found)


if __name__ == "__main__":
    main(*sys.argv[1:])
