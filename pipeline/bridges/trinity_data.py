"""Data of a Trinity-RFT configuration: what it says of a set by saying nothing, and columns under our names."""

from typing import Any

from pipeline.bridges.source import Given
from pipeline.bridges.translation import Path, Translation, first, places
from pipeline.bridges.trinity_sizes import ITS_DEFAULT
from pipeline.settings.data import COLUMNS

# the original's key of a column and its default -> our column, of tasks and of demonstrations
OF_TASKS = {"prompt_key": ("prompt", "question"), "response_key": ("response", "answer")}
SHOWN = {"prompt_key": ("prompt", "question"), "response_key": ("response", "solution"),
         "chosen_key": ("chosen", "chosen"), "rejected_key": ("rejected", "rejected")}
FIELDS = ("data_processor", "task_pipeline", "target_fields")


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
        kind = first(made.entries, (*of_set, "format", "prompt_type"))
        if kind and kind.value == "messages":
            _choose(made, (*of_set, "format", "messages_key"), "message")


def _formatted(made: Translation, of_set: Path) -> set[str | int]:
    """What is said of the format of a set, by itself or by the same set of all."""
    return {path[-1] for path in made.entries if path[:-1] in places((*of_set, "format"))}


def _choose(made: Translation, path: Path, default: str) -> None:
    """The original's default, unless a stage has another value from the settings of all."""
    if first(made.entries, path) is None:
        made.choose(path, default, ITS_DEFAULT)


def _with_path(made: Translation, section: str) -> set[Path]:
    """The sets below a section whose files the recipe names."""
    return {path[:-1] for path, entry in made.entries.items()
            if path[-1] == "path" and section in path and entry.value is not None}


def columns(made: Translation, given: Given, values: dict[Path, Any]) -> bool:
    """Writes the columns that operators look at, under our names; False for any other key, or where all have them."""
    stage = given.path[:2] if given.path[0] == "stages" else ()
    names = [str(name) for name in given.value] if isinstance(given.value, list) else []
    if given.path[len(stage):] != FIELDS or all(name in COLUMNS for name in names):
        return False
    ours = _our_names(values, stage)
    if unknown := [name for name in names if name not in ours]:
        made.leave(given, f"no set calls a column {unknown[0]}; needed our names: {', '.join(COLUMNS)}.")
    elif unclear := [name for name in names if len(ours[name]) > 1]:
        made.leave(given, f"{unclear[0]} is {' in one set, '.join(sorted(ours[unclear[0]]))} in another; needed our "
                          f"names: {', '.join(COLUMNS)}.")
    else:
        found = [column for name in names for column in ours[name]]
        made.rename(given, given.path, found, f"{', '.join(names)} there")
    return True


def _our_names(values: dict[Path, Any], stage: Path) -> dict[str, set[str]]:
    """A column of the source -> what it is here in any of the sets of a stage, or with no stage of all."""
    sets, table = _read(values, stage)
    ours: dict[str, set[str]] = {}
    for of_set in sets:
        for key, (default, name) in table.items():
            ours.setdefault(str(first(values, (*of_set, "format", key)) or default), set()).add(name)
    return ours


def _read(values: dict[Path, Any], stage: Path) -> tuple[set[Path], dict[str, tuple[str, str]]]:
    """The sets whose rows operators curate, with their columns: tasks, or demonstrations where there are none.

    A stage's own sets go before those of all.
    """
    of_stage = [path for path in values if path[:len(stage)] == stage]
    of_all = [path for path in values if not stage or path[0] != "stages"]
    for paths in (of_stage, of_all):
        for names, table in ((("taskset", "tasksets"), OF_TASKS), (("experience_buffer",), SHOWN)):
            if sets := {of_set for path in paths if (of_set := _set_of(path, names))}:
                return sets, table
    return {("buffer", "trainer_input", "experience_buffer")}, SHOWN


def _set_of(path: Path, names: tuple[str, ...]) -> Path | None:
    """The set of one of the names that a key stands in; None for a key elsewhere."""
    size = next((i + (part == "tasksets") for i, part in enumerate(path[:5], 1) if part in names), len(path))
    return path[:size] if "buffer" in path[:3] and size < len(path) else None
