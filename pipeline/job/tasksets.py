"""Tasksets: their settings, and the curated rows that belong to each.

A set with a `path` has its own rows, under its name. One without uses the pool (`data_processor.task_pipeline`), of
its split. Several training sets are concatenated; pipeline/job/selection.py mixes them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ouroboros.pipeline.settings.data import EXPERTS, SHOWN
from ouroboros.pipeline.store import tables
from ouroboros.pipeline.store.errors import DataError

HELD = "held"  # input role of a training stage: the tasks for evaluation during training
PROFILE = "profile_"  # begins the input role of a stage whose measured rates selectors read; its name follows


def sets_with_paths(buffer) -> Iterator[tuple[str, str, str, Any]]:
    """Returns (dotted key, name, split of its rows, settings) of every set with its own files."""
    source, key, shown = buffer.explorer_input, "buffer.explorer_input", buffer.trainer_input
    found = [] if source.tasksets else [(f"{key}.taskset", source.taskset.name, "train", source.taskset)]
    found += [(f"{key}.tasksets.{i}", one.name, "train", one) for i, one in enumerate(source.tasksets)]
    found += [(f"{key}.eval_tasksets.{i}", one.name, "test", one) for i, one in enumerate(source.eval_tasksets)]
    found += [(SHOWN, shown.experience_buffer.name, "sft", shown.experience_buffer)]
    found += [(f"{EXPERTS}.{name}", name, "sft", one) for name, one in shown.auxiliary_buffers.items()]
    yield from (one for one in found if one[3].path is not None)


def read_train(curated: Path, explorer_input) -> list[tuple[Any, tables.Rows]]:
    """Returns (settings, tasks) of every training set. Raises DataError for one without tasks."""
    found = [(taskset, _read(curated, taskset, "train", taskset.limit)) for _, taskset in explorer_input.train_places]
    for taskset, rows in found:
        if not rows:
            raise DataError(f"taskset '{taskset.name}': {_where(curated, taskset)}, so there is no task to explore. "
                            "Give it a path, or data_processor.task_pipeline rows without a solution (one with a "
                            "solution is a demonstration, split sft), or leave the stage out.")
    return found


def read_eval(curated: Path, taskset) -> tables.Rows:
    """Returns the tasks of an evaluation set. Raises DataError when there is none."""
    rows = _read(curated, taskset, "test", taskset.limit)
    if not rows:
        raise DataError(f"evaluation set '{taskset.name}': {_where(curated, taskset)}. Give it a path, let the "
                        "Data-Juicer recipe make one (split_by_hash_mapper), or remove the set.")
    return rows


def read_buffer(curated: Path, name: str, path: Any, split: str) -> tables.Rows:
    """Reads the demonstrations (split sft), pairs (preference) or texts (text) of a buffer; may be empty.

    name: identifies its rows. path: None: the rows are those of the pool.
    """
    return tables.read_tasks(curated, split, taskset=None if path is None else name)


def _read(curated: Path, taskset, own: str, limit: int | None) -> tables.Rows:
    """Returns the tasks of one set, at most `limit`. own: the split of rows from its path."""
    name, split = (None, taskset.split) if taskset.path is None else (taskset.name, own)
    return tables.read_tasks(curated, split, limit, name)


def _where(curated: Path, taskset) -> str:
    path = Path(curated) / tables.LOCATIONS["tasks"]
    return f"{path} has no task " + (f"of split '{taskset.split}'" if taskset.path is None else "of this set")
