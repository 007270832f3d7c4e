"""Functions that rows of data name themselves (format.workflow_key, reward_fn_key), and what replies begin with."""

from typing import Any

from pipeline.check.user_code import Functions
from pipeline.settings.arguments.base import Taker
from pipeline.settings.config import Config
from pipeline.settings.data import Taskset, workflow_of
from pipeline.store.errors import Problem

SINGLE = "simple_workflow"
BY_THEMSELVES = {"model", "endpoint", "toolbox"}  # parameters of workflows that write their own prompts


def by_row(config: Config, taskset: Taskset, key: str) -> Any:
    """Returns a key of the format that the rows of a set are read by: its own, or the pool's."""
    own = taskset if taskset.path is not None else config.data_processor.task_pipeline
    return getattr(own.format, key)


class Lenient:
    """A function's parameters, none of them needed: another function may be called."""

    def __init__(self, taker: Taker):
        self._taker, self.takes_anything = taker, taker.takes_anything
        self.names, self.wrong_values = taker.names, taker.wrong_values

    def needed(self) -> list[str]:
        return []


def cut_prefixes(config: Config, functions: Functions, answered: list[tuple[str, Taskset]]) -> list[Problem]:
    """Lists the sets whose replies begin with a text, and whose workflow asks for more than one reply."""
    found = []
    for key, one in answered:
        prefix, name = by_row(config, one, "reply_prefix"), workflow_of(
            one, config.buffer.explorer_input, key.removeprefix("buffer.explorer_input."))
        own = functions.get(name)
        several = BY_THEMSELVES & set(own.names()) if own else name != SINGLE and ":" not in name
        if prefix and several:
            place = key if one.path is not None else "data_processor.task_pipeline"
            found.append(Problem(f"{place}.format.reply_prefix", f"begins the only reply of an attempt, and {name} has "
                                 f"several.", f"Needed {SINGLE}, or a generator of your own.", found=prefix))
    return found
