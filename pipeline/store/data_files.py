"""Opens data files: jsonl and parquet files, directories of them, and datasets written by `save_to_disk`.

Also directories of Harbor tasks, each a record. Yields records (dicts) with the name of their file. Nothing is
downloaded here: a dataset of the Hugging Face hub is fetched before a run starts (pipeline/plan/hub.py).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ouroboros.pipeline.store import harbor
from ouroboros.pipeline.store.digests import missing, reading, resolve
from ouroboros.pipeline.store.errors import DataError, nearest
from ouroboros.pipeline.store.foreign_text import is_encodable

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

F = TypeVar("F")
SAVED = ("dataset_info.json", "dataset_dict.json")  # written by `save_to_disk` with the rows
BATCH = 10_000  # rows of a Parquet file in memory at once
SPLITS = ("train", "test", "validation", "valid", "val", "dev")  # words in file names that identify a split


OTHER_KINDS = ((b"\x1f\x8b", "compressed (gzip)"), (b"\x28\xb5\x2f\xfd", "compressed (zstd)"),
               (b"PAR1", "Parquet, not text"), (b"\xff\xfe", "UTF-16, not UTF-8"), (b"\xfe\xff", "UTF-16, not UTF-8"),
               (b"version https://git-lfs", "a pointer of Git LFS, not the data"))  # first bytes -> file type


def open_files(paths: str | list[str], subset: str | None, split: str, key: str) -> Iterator[tuple[str, Iterator]]:
    """Yields (name of the file, its records) for every file behind `paths`, in order.

    key: the setting that names them, for messages. Raises DataError that names the file.
    """
    for name in [paths] if isinstance(paths, str) else paths:
        path = resolve(name)
        if not path.exists():
            raise missing(Path(name), key, name)
        if subset is not None:
            path = _subset(path, subset, key)
        if is_saved_dataset(path):
            dataset = saved_dataset(path, split, _set_split(key))
            yield str(path), as_meant(dataset, dataset.features.arrow_schema)
        elif path.is_dir():
            for file in files_of_split(path, split, _set_split(key)):
                yield str(file), _read_file(file)
        else:
            yield str(path), _read_file(path)


def is_saved_dataset(path: Path) -> bool:
    """Returns whether `save_to_disk` wrote this directory."""
    return path.is_dir() and any((path / mark).exists() for mark in SAVED)


def _subset(path: Path, subset: str, key: str) -> Path:
    """Returns the sub-directory `subset` of a directory."""
    setting = f"{key.rsplit('.', 1)[0]}.subset_name"
    if not path.is_dir() or is_saved_dataset(path):
        kind = "a dataset of save_to_disk" if path.is_dir() else "a file"
        raise DataError(f"{setting}={subset}: {path} is {kind}, which has no subsets; set it to null.")
    below = sorted(p.name for p in path.iterdir() if p.is_dir())
    if subset not in below:
        raise DataError(f"{setting}={subset}: {path} has no such sub-directory; found {', '.join(below) or 'none'}."
                        f"{nearest(subset, below)}")
    return path / subset


def files_of_split(directory: Path, split: str, advice: str = "Set split.") -> list[Path]:
    """Returns data files below a directory, without hidden ones; only those of `split` if names have splits
    (`train-00000.parquet`).

    Of a directory of Harbor tasks these are all task.toml.
    """
    with reading(directory):
        if tasks := harbor.tasks_in(directory):
            return tasks
        found = sorted(file for file in directory.rglob("*") if file.suffix in READERS and not file.is_dir()
                       and not any(part.startswith(".") for part in file.relative_to(directory).parts))
    if odd := [file for file in found if not file.is_file()]:
        raise DataError(f"{odd[0]} {'leads nowhere' if odd[0].is_symlink() else 'is a pipe, socket or device'}; needed "
                        "a file. Take it out, or name the files to read.")
    if not found:
        raise DataError(f"{directory} holds no {' or '.join(READERS)} file and no dataset saved by save_to_disk, nor a "
                        f"Harbor task (NAME/{harbor.FILE}).")
    chosen, splits = of_split({file: str(file.relative_to(directory)) for file in found}, split)
    if not chosen:
        raise DataError(f"{directory} has no files of split '{split}'; found {', '.join(splits)}. {advice}")
    return chosen


def of_split(names: Mapping[F, str], split: str) -> tuple[list[F], list[str]]:
    """Returns (files of a split, splits in names); all files if names have no splits. names: file -> its path."""
    words = {file: set(re.split(r"[^a-z0-9]+", name.lower())) for file, name in names.items()}
    splits = sorted({word for w in words.values() for word in w & {*SPLITS, split.lower()}})
    return [file for file in names if not splits or split.lower() in words[file]], splits


def _set_split(key: str) -> str:
    return f"Set {key.rsplit('.', 1)[0]}.split."


def _read_file(path: Path) -> Iterator[dict]:
    if path.name == harbor.FILE:
        return iter([harbor.read_task(path.parent).record()])
    if path.suffix not in READERS:
        raise unreadable(path)
    return READERS[path.suffix](path)


def unreadable(path: Path) -> DataError:
    """Returns the error for an unsupported file type."""
    convert = f"pandas.read_csv('{path.name}').to_json('{path.stem}.jsonl', orient='records', lines=True)"
    if path.suffix.lower() in READERS:
        return DataError(f"{path}: needed the ending {path.suffix.lower()} in small letters. Rename it.")
    how = f': python -c "import pandas; {convert}"' if path.suffix == ".csv" else "."
    return DataError(f"{path}: needed a {' or '.join(READERS)} file or a directory. Write its rows as .jsonl, one "
                     f"object a line{how}")


def _read_jsonl(path: Path) -> Iterator[dict]:
    """Reads one JSON object per line; skips blank lines."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield parsed(line, is_first=number == 1)
            except ValueError as error:
                raise DataError(f"{path}, line {number} {error}; needed one object a line.") from error


def parsed(line: bytes, is_first: bool) -> dict:
    """Parses one line of a jsonl file. Raises ValueError: `is no JSON (Expecting value, column 14)`.

    is_first: whether it is the file's first line, which may have a byte order mark.
    """
    if kind := next((kind for begin, kind in OTHER_KINDS if is_first and line.startswith(begin)), None):
        raise ValueError(f"is {kind}")
    try:
        record = json.loads(line.rstrip(b"\r\n").decode("utf-8-sig" if is_first else "utf-8"), object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON ({error.msg}, column {error.pos + 1})") from error
    except _Twice as error:
        raise ValueError(f"has the key {error} twice in an object, and one value would be lost") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON ({error})") from error
    if not isinstance(record, dict):
        raise ValueError(f"is a JSON {type(record).__name__}" if record is not None else "is JSON's null")
    if b"\\u" in line and not is_encodable(json.dumps(record, ensure_ascii=False)):
        raise ValueError("has a text with half of a surrogate pair, which is no Unicode")
    return record


class _Twice(ValueError):
    """A key that occurs more than once in a JSON object."""


def _once(pairs: list[tuple[str, object]]) -> dict:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(repr(next(name for name in names if names.count(name) > 1)))
    return made


def _read_parquet(path: Path) -> Iterator[dict]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        refuse_same_names(path, pq.read_schema(path).names)
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH):
                yield from as_meant(batch.to_pylist(), file.schema_arrow)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file ({error}). Make it again.") from error


def as_meant(rows: Iterable[dict], schema: "pa.Schema") -> Iterator[dict]:
    """Yields rows whose numbers of 16 and 32 bits are the shortest decimals that these bits stand for (0.1, not the
    0.10000000149011612 of the same bits in 64), and whose classes (ClassLabel of `datasets`) have their names."""
    said = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    classes = {name: one["names"] for name, one in said.items() if isinstance(one, dict) and "names" in one}
    narrow = {field.name: field.type for field in schema if "float" in str(field.type)}
    for row in rows:
        yield {name: _short(value, narrow[name]) if name in narrow else _named(value, classes.get(name))
               for name, value in row.items()}


def _named(value: Any, classes: list[str] | None) -> Any:
    """The name of a class; None of a row without one, which has the number -1."""
    if classes is None or not isinstance(value, int):
        return value
    return classes[value] if value >= 0 else None


def _short(value: Any, kind: "pa.DataType") -> Any:
    if isinstance(value, float):
        return float(str(getattr(kind, "value_type", kind).to_pandas_dtype()(value)))
    if isinstance(value, list) and hasattr(kind, "value_type"):
        return [_short(one, kind.value_type) for one in value]
    is_struct = isinstance(value, dict) and hasattr(kind, "get_field_index")
    return {name: _short(one, kind.field(name).type) for name, one in value.items()} if is_struct else value


def refuse_same_names(path: Path, names: list[str]) -> None:
    """Raises DataError for duplicate column names: a record would silently hold only the last of them."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{path} has several columns named {', '.join(twice)}; needed different names.")


def saved_dataset(path: Path, split: str, advice: str = "Set split.") -> "Dataset":
    """Returns the rows of a dataset written by `save_to_disk`, or of one split of it, by their position; images,
    sounds and videos as {bytes, path}.

    advice: end of the message when the split does not exist. Raises DataError.
    """
    from datasets import DatasetDict, load_from_disk

    try:
        dataset = load_from_disk(str(path))
    except Exception as error:  # its files of JSON are taken for granted: any type error
        raise DataError(f"{path} is not a readable dataset of save_to_disk ({type(error).__name__}: {error}). "
                        "Save it again.") from error
    if not isinstance(dataset, DatasetDict):
        return _undecoded(dataset)
    if split not in dataset:
        raise DataError(f"{path} has no split '{split}'; found {', '.join(dataset)}.{nearest(split, dataset)} {advice}")
    return _undecoded(dataset[split])


def _undecoded(dataset: "Dataset") -> "Dataset":
    from datasets import Audio, Features, Image, Video

    def as_stored(feature: Any) -> Any:
        if isinstance(feature, dict):
            return {name: as_stored(one) for name, one in feature.items()}
        if hasattr(feature, "feature"):  # a list
            return replace(feature, feature=as_stored(feature.feature))
        return replace(feature, decode=False) if isinstance(feature, Audio | Image | Video) else feature

    dataset.info.features = Features(as_stored(dict(dataset.features)))
    return dataset


READERS = {".jsonl": _read_jsonl, ".parquet": _read_parquet}
