"""Data of a Trinity-RFT configuration: what it says of a set by saying nothing, and columns under our names."""

from typing import Any

from pipeline.bridges.source import Given
from pipeline.bridges.translation import Path, Translation, places
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
        if "messages_key" not in _formatted(made, of_set):
            for name, (default, _) in OF_TASKS.items():
                _choose(made, (*of_set, "format", name), default)
        if "eval_tasksets" not in of_set:
            _choose(made, (*of_set, "data_selector", "selector_type"), "sequential")
    for of_set in sorted(_with_path(made, "trainer_input"), key=str):
        if not _formatted(made, of_set) & {"prompt_type", "prompt_key", "response_key"}:
            _choose(made, (*of_set, "format", "prompt_type"), "messages")
        kind = _first(made.entries, (*of_set, "format", "prompt_type"))
        if kind and kind.value == "messages":
            _choose(made, (*of_set, "format", "messages_key"), "message")


def _formatted(made: Translation, of_set: Path) -> set[str | int]:
    """What is said of the format of a set, by itself or by the same set of all."""
    return {path[-1] for path in made.entries if path[:-1] in places((*of_set, "format"))}


def _choose(made: Translation, path: Path, default: str) -> None:
    """The original's default, unless a stage has another value from the settings of all."""
    if _first(made.entries, path) is None:
        made.choose(path, default, ITS_DEFAULT)


def _first(values: dict[Path, Any], path: Path) -> Any:
    """What holds at a path: a stage's own value, or that of all; None where neither is there."""
    return next((values[place] for place in places(path) if values.get(place) is not None), None)


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
