"""Image files that records name, next to their data: which one a name means, and which ones a data file names.

A name leads below the directory of its data file, whose owner decides about links in it: no record of a stranger's file
reads anything else of this machine. The named files are part of a stage's identity, as the data file is.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ouroboros.pipeline.store.digests import hashes_of, remembered_of, resolve
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.pictures import MOST_PIXELS, Broken

MOST_BYTES = 4 * MOST_PIXELS  # of a file: more than any image has that is not compressed
ENDING = r"\.(?:png|jpe?g|webp|gif|bmp|tiff?)"
ends = re.compile(rf'({ENDING})\\*"'.encode(), re.IGNORECASE).finditer  # of a JSON text, also within one

is_name = re.compile(rf".+{ENDING}", re.IGNORECASE).fullmatch


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
    """The file of a name; None where that leads elsewhere."""
    path = directory / name
    return None if ".." in Path(name).parts or not path.is_relative_to(directory) else path


def digest_named(paths: list[str], root: str) -> dict[str, str]:
    """Hashes of the images that data files name, by their names. Of directories all files count without this."""
    found: dict[str, Path] = {}
    for data in filter(Path.is_file, map(resolve, paths)):
        (names,) = remembered_of([data], root, names_in, "names of images")
        found |= {name: path for name in names
                  if (path := _below(directory_of(str(data)), name)) and os.path.isfile(path)}
    return dict(zip(found, hashes_of([*found.values()], root), strict=True))


def names_in(data: Path) -> list[str]:
    """The texts of a jsonl or parquet file that end as names of images do; none of other files."""
    found: dict[str, None] = {}
    for line in READERS[data.suffix](data) if data.suffix in READERS else ():
        for end in ends(line):
            text = line[line.rfind(b'"', 0, end.start()) + 1 : end.end(1)].decode(errors="replace")
            found[json.loads(f'"{text}"', strict=False) if "\\" in text else text] = None
    return list(found)


def _lines(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        yield from file


def _texts(path: Path) -> Iterator[bytes]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    def leaves(array: pa.Array) -> Iterator[pa.Array]:
        if pa.types.is_nested(array.type):
            parts = array.flatten()
            yield from (leaf for part in (parts if isinstance(parts, list) else [parts]) for leaf in leaves(part))
        else:
            yield array.filter(pc.match_substring_regex(array, rf'(?i){ENDING}(\\*"|$)'))

    try:
        with pq.ParquetFile(path) as file:
            columns = [one.path for one in map(file.schema.column, range(len(file.schema.names)))
                       if str(one.logical_type) == "String"]
            for batch in file.iter_batches(columns=columns):
                yield from (f'"{text}"'.encode() for column in batch.columns for leaf in leaves(column)
                            for text in leaf.to_pylist() if text)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file ({error}). Make it again.") from error


READERS = {".jsonl": _lines, ".parquet": _texts}
