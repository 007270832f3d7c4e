"""Image files that records name, next to their data: which one a name means, and which ones a data file names.

A name ends as one of ENDINGS and leads below the directory of its data file; links there are followed. The named files
are part of a stage's identity, as the data file is.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ouroboros.pipeline.store.data_files import is_saved_dataset
from ouroboros.pipeline.store.digests import hashes_of, remembered_of, resolve
from ouroboros.pipeline.store.pictures import MOST_PIXELS, Broken

MOST_BYTES = 4 * MOST_PIXELS  # of a file: more than any image has that is not compressed
ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
has_ending = re.compile("|".join(map(re.escape, ENDINGS)).encode(), re.IGNORECASE).search
ROWS = 1000  # of a Parquet file in memory at once


def is_image_name(value: Any) -> bool:
    """Whether a value is the name of an image file, as records have it."""
    return isinstance(value, str) and value.lower().endswith(ENDINGS) and "://" not in value


def directory_of(data: str) -> Path:
    """The directory from which the records of a data file, or of a dataset of `save_to_disk`, name images."""
    return Path(data).absolute() if Path(data).is_dir() else Path(data).absolute().parent


def read_image(name: str, directory: Path) -> bytes:
    """The image file of a name. directory: of `directory_of`. Raises Broken where there is none below it."""
    path = _below(directory, name)
    if path is None:
        raise Broken(f"the image {name[:200]!r} is not below the directory of its data, {directory}; needed a path "
                     "from there (links are followed)")
    if not os.path.isfile(path):
        raise Broken(f"no image file {name[:200]!r} in the directory of its data, {directory}")
    if (size := path.stat().st_size) > MOST_BYTES:
        raise Broken(f"{size:,} bytes in {name!r}; needed at most {MOST_BYTES:,}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise Broken(f"the image {name!r} cannot be read ({error.strerror})") from error


def _below(directory: Path, name: str) -> Path | None:
    """The file of a name; None where that leads elsewhere. a/../b.png is b.png, also where a is a link."""
    path = directory / os.path.normpath(name)
    return path if ".." not in path.parts[len(directory.parts) :] and path.is_relative_to(directory) else None


def digest_named(paths: list[str], root: str) -> dict[str, str]:
    """Hashes of the images that data files name, by the number of the file and the name. paths: of files, and of
    directories, whose own files count without this, and those below links in them do not."""
    found: dict[str, Path] = {}
    data = [one for path in map(resolve, paths) for one in _data_files(path)]
    named = remembered_of([file for file, _ in data], root, names_in, f"names 1 {ENDINGS}")  # 1: raised with names_in
    for number, ((_, base), names) in enumerate(zip(data, named, strict=True)):
        found |= {f"{number}/{name}": path for name in names if (path := _below(base, name)) and os.path.isfile(path)}
    return dict(zip(found, hashes_of([*found.values()], root), strict=True))


def _data_files(path: Path) -> list[tuple[Path, Path]]:
    """Data files, and the directory from which each names images. A dataset of `save_to_disk` has some only where one
    of its directories is a link."""
    every = sorted(path.rglob("*")) if path.is_dir() else [path]
    saved = is_saved_dataset(path)
    if saved and not any(one.is_symlink() and one.is_dir() for one in every):
        return []
    return [(file, directory_of(str(path if saved else file))) for file in every
            if file.suffix in READERS and (file.suffix == ".arrow") == saved and file.is_file()]


def names_in(data: Path) -> list[str]:
    """The names of images anywhere in the records of a jsonl or parquet file; what cannot be read is left to the stage
    that reads all of it."""
    return list(dict.fromkeys(name for value in READERS[data.suffix](data) for name in _names(value)))


def _names(value: Any) -> Iterator[str]:
    """Those in a value of any depth, and in the JSON text of one."""
    if is_image_name(value):
        yield value
    elif isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        with contextlib.suppress(ValueError, RecursionError):
            yield from _names(json.loads(value))
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _names(one)


def _of_jsonl(path: Path) -> Iterator[Any]:
    with open(path, "rb") as file:
        for line in filter(has_ending, file):
            with contextlib.suppress(ValueError, RecursionError):
                yield json.loads(line)


def _of_parquet(path: Path) -> Iterator[Any]:
    """The texts of its rows, without bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with contextlib.suppress(pa.ArrowException, OSError, ValueError), pq.ParquetFile(path) as file:
        leaves = map(file.schema.column, range(len(file.schema.names)))
        texts = [one.path for one in leaves if str(one.logical_type) in ("String", "JSON", "Enum")]
        decodes = "dictionary<" in str(file.schema_arrow)  # whose texts are not in the buffers of a batch
        for batch in file.iter_batches(ROWS, columns=texts):
            if decodes or any(has_ending(buffer) for one in batch.columns for buffer in one.buffers() if buffer):
                yield from batch.to_pylist()


def _of_saved(path: Path) -> Iterator[Any]:
    import pyarrow as pa

    with contextlib.suppress(pa.ArrowException, OSError, ValueError), pa.memory_map(str(path)) as file:
        for batch in pa.ipc.open_stream(file):
            yield from batch.to_pylist()


READERS = {".jsonl": _of_jsonl, ".parquet": _of_parquet, ".arrow": _of_saved}
