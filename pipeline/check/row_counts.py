"""Upper bounds on the rows a stage learns from: counts local files without parsing their rows, and computes generated
rows from the generator's arguments.

Curation drops rows and splits them, so these are upper bounds.
"""

from functools import cache
from pathlib import Path

from ouroboros.pipeline.plan.hub import is_here
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.curation import TaskPipeline
from ouroboros.pipeline.settings.data import Rows, train_places
from ouroboros.pipeline.settings.kinds import Kind
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.store import harbor
from ouroboros.pipeline.store.data_files import files_of_split, is_saved_dataset
from ouroboros.pipeline.store.digests import below, resolve
from ouroboros.pipeline.store.errors import DataError

LARGEST = 2**30  # bytes: larger jsonl files are not counted; this size takes about a second
CHUNK = 2**20


def most_rows(config: Config, generated: bool = False) -> int | None:
    """Returns the rows that a stage learns from (tasks, or demonstrations and pairs) before curation; None when not all
    can be counted: not on this machine, a dataset of save_to_disk, or texts that are cut into pieces.

    config: its settings (`recipe.effective`). generated: count generated rows too, of which curation drops
    more.
    """
    kind, pool = config.kind, config.data_processor.task_pipeline
    if kind.explores:
        sets = [one for _, one in train_places(config.buffer.explorer_input)]
    elif kind.learns_from_given and config.algorithm.data != "texts":
        sets = [config.buffer.trainer_input.experience_buffer]
    else:
        return None
    made = _generated(pool, kind, config.algorithm.on_pairs) if generated else None
    counts = [_rows_of_set(one, pool, made) for one in sets]
    return None if None in counts else sum(counts)


def _rows_of_set(one: Rows, pool: TaskPipeline, made: int | None) -> int | None:
    """Returns the rows of a set from its own files or the pool. made: rows that a generator provides for it."""
    if one.path is not None:
        named = one.path if isinstance(one.path, list) else [one.path]
        paths, split = [below(path, one.subset_name) for path in named], one.split
    else:
        paths, split = pool.inputs, pool.split
    counts = [_rows_at(resolve(path), split) if is_here(path, split) else None for path in paths]
    counts = counts or [made if one.path is None else None]
    return None if None in counts else min(sum(counts), at(one, "limit") or sum(counts))


def _generated(pool: TaskPipeline, kind: Kind, on_pairs: bool) -> int | None:
    """Returns the rows that a generator creates for this kind of stage, faulty ones included; None for an unknown
    generator or non-numeric arguments. Without curation all rows are tasks. on_pairs: whether it trains on pairs."""
    given = [pool.generator_args.get(name) for name in GENERATED.get(pool.generator, ())]
    if not given or any(isinstance(one, bool) or not isinstance(one, int | float) for one in given):
        return None
    tasks, demonstrations, dirt = given
    pairs = pool.generator_args.get("pairs") or 0
    own = (pairs if on_pairs else demonstrations) if kind.learns_from_given else tasks
    curated, every = pool.config_path or pool.operators, tasks + demonstrations + pairs
    return int((own if curated else every) + round(dirt * every))


def _rows_at(path: Path, split: str) -> int | None:
    """Returns the rows of a file, or of a split's files below a directory."""
    if is_saved_dataset(path) or not (path.is_file() or path.is_dir()):
        return None
    try:
        found = files_of_split(path, split) if path.is_dir() else [path]
    except DataError:  # file errors are reported when the file is sampled
        return None
    counts = [_rows_of_file(file, file.stat().st_mtime_ns) for file in found]
    return None if None in counts else sum(counts)


@cache
def _rows_of_file(path: Path, changed: int) -> int | None:
    """Returns the rows of a Parquet file (from its footer) or of a jsonl file (its lines). changed: its mtime."""
    if path.name == harbor.FILE:
        return 1
    if path.suffix not in (".jsonl", ".parquet"):
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.suffix == ".parquet":
            return pq.read_metadata(path).num_rows
        return _lines(path) if path.stat().st_size <= LARGEST else None
    except (pa.ArrowException, OSError):  # as above
        return None


def _lines(path: Path) -> int | None:
    """Returns the lines of a file; None where it does not begin with an object, and so is no jsonl."""
    count, last = 0, b"\n"
    with open(path, "rb") as file:
        if (begin := file.read(CHUNK).lstrip(b"\xef\xbb\xbf \t\r\n")) and not begin.startswith(b"{"):
            return None
        file.seek(0)
        while chunk := file.read(CHUNK):
            count, last = count + chunk.count(b"\n"), chunk[-1:]
    return count + (last != b"\n")


# generator (operators/generate.py) -> its arguments: number of tasks and demonstrations, share of faulty rows added
GENERATED = {"countdown": ("tasks", "demonstrations", "dirt")}
