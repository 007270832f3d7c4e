"""Writes raw.parquet: uncleaned tasks from a generator or from the user's files.

The pool, which curation splits, is `data_processor.task_pipeline`: `generator`, or `inputs`. Every taskset, eval set
and experience buffer with a `path` adds its own rows, under its name, with the split given by its place in the
configuration. (The plan includes only sets that downstream stages read.) Supported files: pipeline/store/data_files.py;
supported records: operators/formats.py.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from operators.arguments import arguments
from operators.features import featured, noting
from operators.formats import read_records
from operators.generate import GENERATORS
from pipeline.job.context import Context, run_stage
from pipeline.job.tasksets import sets_with_paths
from pipeline.store import harbor, tables
from pipeline.store.data_files import open_files
from pipeline.store.digests import resolve
from pipeline.store.errors import ConfigError, DataError, pick
from pipeline.store.records import RawTask

PIPELINE = "data_processor.task_pipeline"


def work(context: Context) -> None:
    rows = read_pool(context.config) + read_sets(context.config)
    if not rows:
        raise ConfigError(f"no data: {PIPELINE} has neither generator nor inputs, and no taskset a path. Set "
                          "buffer.explorer_input.taskset.path (and eval_tasksets.N.path) or "
                          f"{PIPELINE}.inputs to your jsonl, parquet or dataset directories, or "
                          f"{PIPELINE}.generator to one of {', '.join(GENERATORS)}.")
    rows = [replace(row, row=position) for position, row in enumerate(rows)]
    tables.write(context.directory / tables.LOCATIONS["raw"], RawTask, rows)
    context.log.info("%d rows, %d of them demonstrations", len(rows), sum(r.solution is not None for r in rows))
    context.made["rows"] = len(rows)
    if names := _harbor_sets(context.config.buffer):
        found = [row for row in rows if row.taskset in names]
        skipped = sum(row.problem is not None for row in found)
        context.made["harbor"] = {"tasks": len(found), "skipped": skipped, "isolation": harbor.ISOLATION}
        context.log.info("%d Harbor tasks, %d of them skipped; %s", len(found), skipped, harbor.ISOLATION)


def read_pool(config) -> list[RawTask]:
    """The rows that curation splits into train, test and demonstrations."""
    settings = config.data_processor.task_pipeline
    if settings.generator:
        return generate(settings.generator, config.seed, settings.generator_args)
    return read_set(settings.inputs, None, settings.split, settings.format, "task", f"{PIPELINE}.inputs",
                    keys_of(config.buffer.explorer_input.taskset, pool=True))


def read_sets(config) -> list[RawTask]:
    """The rows of every set with a path of its own."""
    rows: list[RawTask] = []
    for key, name, split, taskset in sets_with_paths(config.buffer):
        purpose = "task" if split != "sft" else "demonstration" if taskset.format.response_key else "text"
        made = read_set(taskset.path, taskset.subset_name, taskset.split, taskset.format, purpose, f"{key}.path",
                        keys_of(taskset) if split == "train" else ())
        rows += [replace(row, taskset=name, split=_split(purpose, split, row)) for row in made]
    return rows


def _split(purpose: str, split: str, row: RawTask) -> str:
    """Split of a row: in experience buffers pairs are `preference` and plain texts `text`."""
    return "text" if purpose == "text" else "preference" if split == "sft" and row.chosen is not None else split


def generate(name: str, seed: int, given: dict[str, Any]) -> list[RawTask]:
    """Rows of a generator. Raises ConfigError for an unknown name or arguments that it does not take."""
    generator = pick(GENERATORS, name, "generator")
    rows = list(generator(seed, **arguments("generator", name, generator, given, f"{PIPELINE}.generator_args")))
    if not rows:
        raise DataError(f"generator '{name}' made no rows with {given}; ask for some tasks.")
    return rows


def keys_of(taskset, pool: bool = False) -> list[str]:
    """The keys of the features that a set's selector reads; pool: of sets without a path (pipeline/plan/data.py)."""
    return taskset.data_selector.feature_keys if pool == (taskset.path is None) else []


def read_set(paths: str | list[str], subset: str | None, split: str, columns, purpose: str, key: str,
             features: Sequence[str] = ()) -> list[RawTask]:
    """Rows of all files behind `paths`, in order, numbered. Raises DataError naming the file.

    columns: the settings of its format. purpose: task, demonstration or text. key: the setting that holds the paths.
    features: keys of numbers beside the tasks.
    """
    rows: list[RawTask] = []
    for file, records in open_files(paths, subset, split, key):
        before, noted = len(rows), []
        records = noting(records, features, noted) if features else records
        rows += ([_of_harbor(record, before, columns, file) for record in records] if Path(file).name == harbor.FILE
                 else read_records(records, columns, purpose, file, before))
        if features:
            rows[before:] = map(featured, rows[before:], noted)
        if len(rows) == before:
            raise DataError(f"{file} holds no rows; take it out of {key}.")
    return rows


def _harbor_sets(buffer) -> set[str]:
    """The names of the sets whose rows are Harbor tasks."""
    paths = {name: one.path if isinstance(one.path, list) else [one.path]
             for _, name, _, one in sets_with_paths(buffer)}
    return {name for name, several in paths.items() if any(harbor.tasks_in(resolve(path)) for path in several)}


def _of_harbor(record: dict[str, Any], row: int, columns, file: str) -> RawTask:
    """The row of a Harbor task. Raises DataError for one that cannot run here, unless such tasks are skipped."""
    reason = record[harbor.UNSUPPORTED]
    if reason and columns.unsupported == "error":
        raise DataError(f"the Harbor task {Path(file).parent} cannot run here: {reason}. Take it out of the directory, "
                        "or set format.unsupported=skip to leave out all such tasks (table rejected).")
    return RawTask(row, record["question"], record["answer"], None, problem=reason)


if __name__ == "__main__":
    run_stage(work, __doc__)
