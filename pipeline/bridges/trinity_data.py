"""Data of a Trinity-RFT configuration: what it says of a set by saying nothing, and columns under our names."""

from typing import Any

from pipeline.bridges.source import Given
from pipeline.bridges.translation import Path, Translation
from pipeline.bridges.trinity_sizes import ITS_DEFAULT
from pipeline.data_config import COLUMNS

# the original's key of a column and its default -> our column, of tasks and of demonstrations
OF_TASKS = {"prompt_key": ("prompt", "question"), "response_key": ("response", "answer")}
SHOWN = {"prompt_key": ("prompt", "question"), "response_key": ("response", "solution"),
         "chosen_key": ("chosen", "chosen"), "rejected_key": ("rejected", "rejected")}
FIELDS = "data_processor.task_pipeline.target_fields"


def say_defaults(made: Translation) -> None:
    """Lines for the format and the order of each set that has a path, where the source is silent."""
    for of_set in sorted(_with_path(made, "explorer_input"), key=str):
        if "messages_key" not in [p[-1] for p in made.entries if p[:len(of_set)] == of_set]:
            for name, (default, _) in OF_TASKS.items():
                made.choose((*of_set, "format", name), default, ITS_DEFAULT)
        if "eval_tasksets" not in of_set:
            made.choose((*of_set, "data_selector", "selector_type"), "sequential", ITS_DEFAULT)
    for of_set in sorted(_with_path(made, "trainer_input"), key=str):
        given = {p[-1] for p in made.entries if p[:-1] == (*of_set, "format")}
        if not given & {"prompt_type", "prompt_key", "response_key"}:
            made.choose((*of_set, "format", "prompt_type"), "messages", ITS_DEFAULT)
        kind = made.entries.get((*of_set, "format", "prompt_type"))
        if kind and kind.value == "messages":
            made.choose((*of_set, "format", "messages_key"), "message", ITS_DEFAULT)


def _with_path(made: Translation, section: str) -> set[Path]:
    """The sets below a section whose files the recipe names."""
    return {path[:-1] for path, entry in made.entries.items()
            if path[-1] == "path" and section in path and entry.value is not None}


def columns(made: Translation, given: Given, values: dict[Path, Any]) -> bool:
    """Writes the columns that operators look at, under our names; False for any other key, or where all have them."""
    names = given.value if isinstance(given.value, list) else []
    if given.key != FIELDS or all(name in COLUMNS for name in names):
        return False
    ours = _our_names(values)
    if unknown := [str(name) for name in names if name not in ours]:
        made.leave(given, f"no set calls a column {unknown[0]}; needed our names: {', '.join(COLUMNS)}.")
    else:
        made.rename(given, given.path, [ours[name] for name in names], f"{', '.join(map(str, names))} there")
    return True


def _our_names(values: dict[Path, Any]) -> dict[str, str]:
    """A column of the source -> ours, by the formats of its sets."""
    source, ours = ("buffer", "explorer_input", "taskset", "format"), {}
    shown = ("buffer", "trainer_input", "experience_buffer", "format")
    has_tasks = any(path[:3] == source[:3] for path in values)
    for of_set, table in ((source, OF_TASKS),) if has_tasks else ((shown, SHOWN),):
        ours |= {str(values.get((*of_set, key)) or default): name for key, (default, name) in table.items()}
    return ours
