"""Tasksets: which there are, which rows of the curated tasks are theirs, and the rules between their settings.

A set with a `path` has rows of its own, under its name. One without takes the pool (`data_processor.task_pipeline`),
of its split. Several sets that are trained on are laid end to end; pipeline/selection.py mixes them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline import records, tables
from pipeline.errors import DataError

HELD = "held"  # the input of a stage that trains, with the tasks it is evaluated on meanwhile


def train_sets(explorer_input) -> list:
    """The sets to train on: `tasksets`, else the one `taskset`."""
    return explorer_input.tasksets or [explorer_input.taskset]


def sets_with_paths(buffer) -> Iterator[tuple[str, str, Any]]:
    """(dotted key, split of its rows, settings) of every set that brings its own files."""
    source, key = buffer.explorer_input, "buffer.explorer_input"
    if not source.tasksets:
        yield from _with_path(f"{key}.taskset", "train", source.taskset)
    for index, taskset in enumerate(source.tasksets):
        yield from _with_path(f"{key}.tasksets.{index}", "train", taskset)
    for index, taskset in enumerate(source.eval_tasksets):
        yield from _with_path(f"{key}.eval_tasksets.{index}", "test", taskset)
    yield from _with_path("buffer.trainer_input.experience_buffer", "sft", buffer.trainer_input.experience_buffer)


def _with_path(key: str, split: str, taskset) -> Iterator[tuple[str, str, Any]]:
    if taskset.path is not None:
        yield key, split, taskset


def read_train(curated: Path, explorer_input) -> list[tuple[Any, list[records.Task]]]:
    """(settings, tasks) of every set to train on. Raises DataError for one that has no task."""
    found = [(taskset, _read(curated, taskset, "train", taskset.limit)) for taskset in train_sets(explorer_input)]
    for taskset, rows in found:
        if not rows:
            raise DataError(f"taskset '{taskset.name}': {_where(curated, taskset)}, so there is no task to explore. "
                            "Give it a path, or data_processor.task_pipeline rows without a solution (one with a "
                            "solution is a demonstration, split sft), or leave the stage out.")
    return found


def read_eval(curated: Path, taskset) -> list[records.Task]:
    """The tasks of an evaluation set. Raises DataError when there is none."""
    rows = _read(curated, taskset, "test", taskset.limit)
    if not rows:
        raise DataError(f"evaluation set '{taskset.name}': {_where(curated, taskset)}. Give it a path, let the "
                        "Data-Juicer recipe make one (split_by_hash_mapper), or remove the set.")
    return rows


def read_buffer(curated: Path, experience_buffer, split: str) -> list[records.Task]:
    """The demonstrations (split sft) or pairs (split preference) of an experience buffer; none is no error."""
    name = None if experience_buffer.path is None else experience_buffer.name
    return tables.read_tasks(curated, split, taskset=name)


def _read(curated: Path, taskset, own: str, limit: int | None) -> list[records.Task]:
    """The tasks of one set, the first `limit` of them. own: the split that rows from its path have."""
    name, split = (None, taskset.split) if taskset.path is None else (taskset.name, own)
    return tables.read_tasks(curated, split, limit, name)


def _where(curated: Path, taskset) -> str:
    path = Path(curated) / tables.LOCATIONS["tasks"]
    return f"{path} has no task " + (f"of split '{taskset.split}'" if taskset.path is None else "of this set")
