"""How many rows the files hold that a stage learns from: counted where they are here, without reading what rows say.

Curation drops rows and splits them, so a stage has at most so many.
"""

from functools import cache
from pathlib import Path
from typing import Any

from pipeline.data_config import train_places
from pipeline.data_files import files_of_split, is_saved_dataset
from pipeline.errors import DataError
from pipeline.external import resolve
from pipeline.modes import kind_of

LARGEST = 2**30  # bytes of a jsonl file whose lines are still counted: about a second
CHUNK = 2**20


def most_rows(config: dict[str, Any]) -> int | None:
    """Rows that a stage learns from (tasks, or demonstrations and pairs), before curation; None where not all can be
    counted here: they are generated, elsewhere, in a dataset of save_to_disk, or texts that are cut into pieces.

    config: its settings (`overlays.effective`).
    """
    kind = kind_of(config)
    if kind in ("rft", "rollout"):
        sets = [one for _, one in train_places(config["buffer"]["explorer_input"])]
    elif kind == "train" and config["algorithm"]["algorithm_type"] != "cpt":
        sets = [{**config["buffer"]["trainer_input"]["experience_buffer"], "limit": None}]
    else:
        return None
    counts = [_rows_of_set(one, config["data_processor"]["task_pipeline"]) for one in sets]
    return None if None in counts else sum(counts)


def _rows_of_set(one: dict[str, Any], pool: dict[str, Any]) -> int | None:
    """Rows of a set from its own files, or from those of the pool."""
    if one["path"] is None:
        paths, split = pool["inputs"], pool["split"]
    else:
        named = one["path"] if isinstance(one["path"], list) else [one["path"]]
        paths, split = [str(Path(path) / (one["subset_name"] or "")) for path in named], one["split"]
    counts = [_rows_at(resolve(path), split) for path in paths]
    if not counts or None in counts:
        return None
    return min(sum(counts), one["limit"] or sum(counts))


def _rows_at(path: Path, split: str) -> int | None:
    """Rows of a file, or of the files of a split below a directory."""
    if is_saved_dataset(path) or not path.exists():
        return None
    try:
        found = files_of_split(path, split) if path.is_dir() else [path]
    except DataError:  # what is wrong with the files is told when a sample of them is read
        return None
    counts = [_rows_of_file(file, file.stat().st_mtime_ns) for file in found]
    return None if None in counts else sum(counts)


@cache
def _rows_of_file(path: Path, changed: int) -> int | None:
    """Rows of a Parquet file by its footer, of a jsonl file by its lines. changed: its time stamp."""
    if path.suffix == ".jsonl":
        return _lines(path) if path.stat().st_size <= LARGEST else None
    if path.suffix != ".parquet":
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_metadata(path).num_rows
    except (pa.ArrowException, OSError):  # as above
        return None


def _lines(path: Path) -> int:
    count, last = 0, b"\n"
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            count, last = count + chunk.count(b"\n"), chunk[-1:]
    return count + (last != b"\n")
