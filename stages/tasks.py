"""Makes raw.parquet: tasks as they come, from a generator or from the user's files, nothing cleaned.

Reads `data_processor.task_pipeline`: `generator` with `generator_args`, or `inputs`: jsonl and parquet files,
directories of them, and Hugging Face datasets written by `save_to_disk`. `format` names the columns. What is no text
in a text column (a number, a list, an object) becomes its JSON text.
"""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from operators.generate import GENERATORS
from pipeline import tables
from pipeline.errors import ConfigError, DataError, nearest, pick
from pipeline.external import resolve
from pipeline.process import Context, run_stage
from pipeline.records import RawTask

SPLITS = ("train", "test", "validation", "valid", "val", "dev")  # words in file names that tell a split


def work(context: Context) -> None:
    settings = context.config.data_processor.task_pipeline
    if settings.generator:
        rows = generate(settings.generator, context.config.seed, settings.generator_args)
    elif settings.inputs:
        rows = read_inputs(settings.inputs, settings.split, settings.format)
    else:
        raise ConfigError("data_processor.task_pipeline: neither generator nor inputs is set; set inputs to your "
                          f"jsonl, parquet or dataset directories, or generator to one of {', '.join(GENERATORS)}.")
    tables.write(context.directory / tables.LOCATIONS["raw"], RawTask, rows)
    context.log.info("%d rows, %d of them demonstrations", len(rows), sum(r.solution is not None for r in rows))
    context.made["rows"] = len(rows)


def generate(name: str, seed: int, arguments: dict[str, Any]) -> list[RawTask]:
    """Rows of a generator. Raises ConfigError for an unknown name, or arguments that it does not take."""
    generator = pick(GENERATORS, name, "generator")
    try:
        inspect.signature(generator).bind(seed, **arguments)
    except TypeError as error:
        raise ConfigError(f"data_processor.task_pipeline.generator_args={arguments}: {error}. Generator '{name}' takes "
                          f"{inspect.signature(generator)}; seed is the setting `seed`.") from error
    rows = list(generator(seed, **arguments))
    if not rows:
        raise DataError(f"generator '{name}' made no rows with {arguments}; ask for some tasks.")
    return rows


def read_inputs(inputs: list[str], split: str, columns) -> list[RawTask]:
    """Rows of all inputs, in order, numbered through. Raises DataError that names the file."""
    rows: list[RawTask] = []
    for name in inputs:
        for file, records in _open(resolve(name), split):
            before = len(rows)
            for record in records:
                rows.append(_raw_task(len(rows), record, columns, file, len(rows) - before))
            if len(rows) == before:
                raise DataError(f"{file} holds no rows; take it out of data_processor.task_pipeline.inputs.")
    return rows


def _open(path: Path, split: str) -> Iterator[tuple[str, Iterator[dict]]]:
    """(name of the file, its records) for every file behind one input."""
    if not path.exists():
        raise DataError(f"{path} does not exist (looked from {Path.cwd()}). Check data_processor.task_pipeline.inputs.")
    if path.is_dir() and any((path / mark).exists() for mark in ("dataset_info.json", "dataset_dict.json")):
        yield str(path), _read_saved_dataset(path, split)
    elif path.is_dir():
        for file in files_of_split(path, split):
            yield str(file), _read_file(file)
    else:
        yield str(path), _read_file(path)


def files_of_split(directory: Path, split: str) -> list[Path]:
    """Data files below a directory; only those of `split` when the names tell splits apart (`train-00000.parquet`)."""
    found = sorted(f for f in directory.rglob("*") if f.suffix in READERS and f.is_file())
    if not found:
        raise DataError(f"{directory} holds no {' or '.join(READERS)} file and no dataset saved by save_to_disk.")
    words = {f: set(re.split(r"[^a-z0-9]+", str(f.relative_to(directory)).lower())) for f in found}
    told = sorted({word for w in words.values() for word in w & {*SPLITS, split.lower()}})
    chosen = [f for f in found if split.lower() in words[f]] if told else found
    if not chosen:
        raise DataError(f"{directory} has no files of split '{split}'; found {', '.join(told)}. "
                        "Set data_processor.task_pipeline.split.")
    return chosen


def _read_file(path: Path) -> Iterator[dict]:
    if path.suffix not in READERS:
        raise DataError(f"{path}: needed a {' or '.join(READERS)} file or a directory.{nearest(path.suffix, READERS)}")
    return READERS[path.suffix](path)


def _read_jsonl(path: Path) -> Iterator[dict]:
    """One JSON object a line; blank lines are skipped."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {number} is no JSON ({error}); needed one object a line.") from error
            if not isinstance(record, dict):
                raise DataError(f"{path}, line {number} is a JSON {type(record).__name__}; needed one object a line.")
            yield record


def _read_parquet(path: Path) -> Iterator[dict]:
    try:
        yield from pq.read_table(path, partitioning=None).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file ({error}). Make it again.") from error


def _read_saved_dataset(path: Path, split: str) -> Iterator[dict]:
    from datasets import DatasetDict, load_from_disk

    try:
        dataset = load_from_disk(str(path))
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise DataError(f"{path} is not a readable dataset of save_to_disk ({error}). Save it again.") from error
    if isinstance(dataset, DatasetDict):
        if split not in dataset:
            raise DataError(f"{path} has no split '{split}'; found {', '.join(dataset)}. "
                            "Set data_processor.task_pipeline.split.")
        dataset = dataset[split]
    yield from dataset


def _raw_task(row: int, record: dict, columns, file: str, index: int) -> RawTask:
    """A record as a raw task; `index` is its position in `file`, for messages."""
    for key, setting in ((columns.prompt_key, "prompt_key"), (columns.response_key, "response_key")):
        if key not in record:
            raise DataError(f"{file}, record {index + 1}: no column '{key}'; found {', '.join(map(str, record))}."
                            f"{nearest(key, map(str, record))} Set data_processor.task_pipeline.format.{setting}.")
    keys = (columns.prompt_key, columns.response_key, columns.solution_key)
    try:
        return RawTask(row, *(_text(record.get(key)) for key in keys))
    except UnicodeEncodeError as error:
        raise DataError(f"{file}, record {index + 1}: text that is no valid Unicode ({error}).") from error


def _text(value: Any) -> str | None:
    """Text as it is, null as null, anything else as JSON."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text.encode()  # a lone surrogate cannot be stored
    return text


READERS = {".jsonl": _read_jsonl, ".parquet": _read_parquet}

if __name__ == "__main__":
    run_stage(work, __doc__)
