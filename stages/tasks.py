"""Writes raw.parquet: uncleaned tasks from a generator or from the user's files.

The pool, which curation splits, is `data_processor.task_pipeline`: `generator`, or `inputs`. Every taskset, eval set
and experience buffer with a `path` adds its own rows, under its name, with the split given by its place in the
configuration. (The plan includes only sets that downstream stages read.) Rows are written as they are read. Supported
files: pipeline/store/data_files.py; supported records: operators/formats.py.
"""

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

from ouroboros.operators.arguments import arguments
from ouroboros.operators.columns import keeping, with_columns
from ouroboros.operators.features import featured, noting
from ouroboros.operators.formats import read_records
from ouroboros.operators.generate import GENERATORS
from ouroboros.pipeline.job.context import Context, run_stage
from ouroboros.pipeline.job.tasksets import sets_with_paths
from ouroboros.pipeline.store import harbor, pictures, tables
from ouroboros.pipeline.store.data_files import open_files
from ouroboros.pipeline.store.digests import resolve
from ouroboros.pipeline.store.errors import ConfigError, DataError, pick
from ouroboros.pipeline.store.records import Image, RawTask

PIPELINE = "data_processor.task_pipeline"
GROUP = 10_000  # rows in memory at once, and of a row group of the file


def work(context: Context) -> None:
    images, kept = built(context), pictures.Kept(context.directory / ".pictures.tmp")
    of_harbor, found = harbor_sets(context.config.buffer), Counter()

    def counted() -> Iterator[RawTask]:
        for position, row in enumerate(chain(
                read_pool(context.config, kept), read_sets(context.config, images, kept)), 1):
            found["rows"] += 1
            found["solutions"] += row.solution is not None
            found["harbor"] += row.taskset in of_harbor
            found["skipped"] += row.taskset in of_harbor and row.problem is not None
            yield replace(row, row=position)
            if position % GROUP == 0:
                context.activity.alive()

    tables.write_groups(context.directory / tables.LOCATIONS["raw"], RawTask, _groups(counted()))
    kept.write(context.directory)
    context.log.info("%d rows, %d of them demonstrations", found["rows"], found["solutions"])
    context.made["rows"] = found["rows"]
    if of_harbor:
        tasks, skipped = found["harbor"], found["skipped"]
        context.made["harbor"] = {"tasks": tasks, "skipped": skipped, "isolation": harbor.ISOLATION}
        context.log.info("%d Harbor tasks, %d of them skipped; %s", tasks, skipped, harbor.ISOLATION)


def _groups(rows: Iterable[RawTask]) -> Iterator[list[RawTask]]:
    """Rows as the row groups of a file, each of one set. Raises ConfigError where there are none."""
    empty = True
    for _, of_set in groupby(rows, lambda row: (row.taskset, row.split)):
        while group := list(islice(of_set, GROUP)):
            empty = False
            yield group
    if empty:
        raise ConfigError(f"no data: {PIPELINE} has neither generator nor inputs, and no taskset a path. Set "
                          "buffer.explorer_input.taskset.path (and eval_tasksets.N.path) or "
                          f"{PIPELINE}.inputs to your jsonl, parquet or dataset directories, or "
                          f"{PIPELINE}.generator to one of {', '.join(GENERATORS)}.")


def read_pool(config, kept: pictures.Kept | None = None) -> Iterable[RawTask]:
    """The rows that curation splits into train, test and demonstrations. kept: of read_records."""
    settings = config.data_processor.task_pipeline
    if settings.generator:
        return generate(settings.generator, config.seed, settings.generator_args, kept)
    return read_set(settings.inputs, None, settings.split, settings.format, "task", f"{PIPELINE}.inputs",
                    keys_of(config.buffer.explorer_input.taskset, pool=True),
                    asked=config.buffer.explorer_input.taskset.columns, kept=kept)


def built(context: Context) -> Mapping[str, Image]:
    """The images of Harbor tasks by the hash of what they are built of; the digests are in the stage's manifest."""
    if "images" not in context.inputs:
        return {}
    rows = tables.read(context.inputs["images"] / tables.LOCATIONS["images"], Image).to_pylist()
    context.made["images"] = {row["key"]: row["digest"] for row in rows}
    return {row["source"]: Image(**row) for row in rows}


def read_sets(config, images: Mapping[str, Image] | None = None, kept: pictures.Kept | None = None
              ) -> Iterator[RawTask]:
    """The rows of every set with its own path. images: of Harbor tasks (`built`); None: before they are. kept: of
    read_records."""
    for key, name, split, taskset in sets_with_paths(config.buffer):
        purpose = "task" if split != "sft" else "demonstration" if taskset.format.response_key else "text"
        made = read_set(taskset.path, taskset.subset_name, taskset.split, taskset.format, purpose, f"{key}.path",
                        keys_of(taskset) if split == "train" else (), images,
                        getattr(taskset, "columns", ()), kept)
        yield from (replace(row, taskset=name, split=_split(purpose, split, row)) for row in made)


def _split(purpose: str, split: str, row: RawTask) -> str:
    """Split of a row: in experience buffers pairs are `preference` and plain texts `text`."""
    return "text" if purpose == "text" else "preference" if split == "sft" and row.chosen is not None else split


def generate(name: str, seed: int, given: dict[str, Any], kept: pictures.Kept | None = None) -> list[RawTask]:
    """Rows of a generator. kept: where their images are stored. Raises ConfigError for an unknown name or
    arguments that it does not take."""
    generator = pick(GENERATORS, name, "generator")
    kept = kept or pictures.Kept(None)
    rows = list(generator(seed, **arguments("generator", name, generator, given, f"{PIPELINE}.generator_args")))
    for row in rows:
        row.pictures = [kept.keep(one) for one in row.pictures or ()] or None
    if not rows:
        raise DataError(f"generator '{name}' made no rows with {given}; ask for some tasks.")
    return rows


def keys_of(taskset, pool: bool = False) -> list[str]:
    """The keys of the features that a set's selector reads; pool: of sets without a path (pipeline/plan/data.py)."""
    return taskset.data_selector.feature_keys if pool == (taskset.path is None) else []


def read_set(paths: str | list[str], subset: str | None, split: str, columns, purpose: str, key: str,
             features: Sequence[str] = (), images: Mapping[str, Image] | None = None,
             asked: Sequence[str] = (), kept: pictures.Kept | None = None) -> Iterator[RawTask]:
    """Rows of all files behind `paths`, in order, numbered. Raises DataError naming the file.

    columns: the settings of its format. purpose: task, demonstration or text. key: the setting that holds the paths.
    features: keys of numbers of the tasks. images: of Harbor tasks (`built`); None: a preview, before they are.
    asked: columns that are kept with the tasks. kept: of read_records.
    """
    number = 0
    for file, records in open_files(paths, subset, split, key):
        before, noted, others = number, deque(), deque()
        records = noting(records, features, noted) if features else records
        records = keeping(records, asked, columns, others) if asked else records
        rows = ((_of_harbor(record, before + place, columns, file, images) for place, record in enumerate(records))
                if Path(file).name == harbor.FILE else read_records(records, columns, purpose, file, before, kept))
        for row in rows:
            number += 1
            row = featured(row, noted.popleft()) if features else row
            yield with_columns(row, others.popleft()) if asked else row
        if number == before:
            raise DataError(f"{file} holds no rows; take it out of {key}.")


def harbor_sets(buffer) -> set[str]:
    """The names of the sets whose rows are Harbor tasks."""
    paths = {name: one.path if isinstance(one.path, list) else [one.path]
             for _, name, _, one in sets_with_paths(buffer)}
    return {name for name, several in paths.items() if any(harbor.tasks_in(resolve(path)) for path in several)}


def _of_harbor(record: dict[str, Any], row: int, columns, file: str, images: Mapping[str, Image] | None) -> RawTask:
    """The row of a Harbor task. Raises DataError for one that cannot run here, unless such tasks are skipped."""
    reason = record[harbor.UNSUPPORTED]
    if reason and columns.unsupported == "error":
        raise DataError(f"the Harbor task {Path(file).parent} cannot run here: {reason}. Take it out of the directory, "
                        "or set format.unsupported=skip to leave out all such tasks (table rejected).")
    answer, image = record["answer"], (images or {}).get(record[harbor.SOURCE])
    if images is not None and record[harbor.SOURCE] and not image and not reason:
        reason = "it needs an image, and those of tasks in data sets of the hub are not built: download them"
    if image and image.digest is None:
        reason = f"no image was built: {image.reason} (log: {image.log})"
    elif image:
        answer = with_image(answer, Path(image.log).with_suffix(".json"), image.digest)
    return RawTask(row, record["question"], answer, None, problem=reason)


def with_image(truth: str, place: Path, digest: str) -> str:
    """The truth of a Harbor task with its built image, which Harbor (workflows/environments/harbor.py) reads."""
    return json.dumps(json.loads(truth) | {"image": str(place), "digest": digest})


if __name__ == "__main__":
    run_stage(work, __doc__)
