"""Parquet tables with one schema each (pipeline/store/records.py), and the DuckDB session that queries them."""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ouroboros.pipeline.store import hashes, records, sessions
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.foreign_text import escaped_all
from ouroboros.pipeline.store.locations import LOCATIONS, PER_STEP, step_file, steps_present  # noqa: F401  here for other modules

# Dictionary pages make the small files of single steps larger and slower to write.
FORMAT = {"compression": "zstd", "use_dictionary": False}


def to_arrow(rows: Sequence, record: type) -> pa.Table:
    """Converts rows of one record class to an Arrow table. An unexpected null fails an assertion; so does, in Arrow, a
    value of another type. Halves of surrogate pairs, which Parquet cannot hold, are escaped: one text must not cost the
    other rows."""
    columns: dict[str, Any] = {f.name: [getattr(row, f.name) for row in rows] for f in dataclasses.fields(record)}
    for field in records.schema(record):
        if pa.types.is_list(field.type) and any(isinstance(value, pa.Array) for value in columns[field.name]):
            columns[field.name] = _joined(columns[field.name], field.type)
    try:
        table = pa.table(columns, schema=records.schema(record))
    except UnicodeEncodeError:
        table = pa.table(escaped_all(columns), schema=records.schema(record))
    wrong = [f.name for f in table.schema if not f.nullable and table[f.name].null_count]
    assert not wrong, f"{record.__name__}: null in {', '.join(wrong)}"
    return table


def _joined(values: list[pa.Array | list | None], kind: pa.ListType) -> pa.ListArray:
    """A column of lists that are Arrow arrays already, without a Python object for each value in them."""
    parts = [value.cast(kind.value_type) if isinstance(value, pa.Array) else pa.array(value or [], kind.value_type)
             for value in values]
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.concat_arrays(parts), type=kind,
                                    mask=pa.array([value is None for value in values]))


def write(path: Path, record: type, rows: Sequence | pa.Table) -> None:
    """Writes rows (or an Arrow table with the record's columns) to one Parquet file atomically; records its hash."""
    table = rows.cast(records.schema(record)) if isinstance(rows, pa.Table) else to_arrow(rows, record)
    hashes.write(Path(path), lambda temporary: pq.write_table(table, temporary, **FORMAT))


def write_groups(path: Path, record: type, groups: Iterable[Sequence | pa.Table]) -> None:
    """Writes rows as `write` does, a row group for each of the given ones: no more than one need be in memory."""
    def write_to(temporary: Path) -> None:
        with pq.ParquetWriter(temporary, records.schema(record), **FORMAT) as writer:
            for rows in groups:
                writer.write_table(rows if isinstance(rows, pa.Table) else to_arrow(rows, record))

    hashes.write(Path(path), write_to)


def read(path: Path, record: type) -> pa.Table:
    """Reads a Parquet file and checks it against the record.

    Raises DataError, naming the file, the columns and the stage to run again, when the file is missing, not what was
    written, no Parquet, of another schema, or has a null where none is allowed.
    """
    older = _checked(path, record)
    # pq.read_table would import pyarrow.dataset, and that pandas: a second
    return _complete(path, record, older, lambda names: pq.ParquetFile(path).read(names))


class Groups:
    """A Parquet file that is read by row groups; checked as by `read`."""

    def __init__(self, path: Path, record: type):
        self.path, self.record = Path(path), record
        self.older, self.file = _checked(self.path, record), pq.ParquetFile(self.path)

    def __len__(self) -> int:
        return self.file.num_row_groups

    def read(self, group: int) -> pa.Table:
        return _complete(self.path, self.record, self.older, lambda names: self.file.read_row_group(group, names))

    def columns(self, group: int, names: list[str]) -> pa.Table:
        """Returns some columns of a group, which every release wrote."""
        return self.file.read_row_group(group, names)


def _checked(path: Path, record: type) -> list[str]:
    """Returns the columns that a file of an older release lacks. Raises DataError where `read` does, but for nulls."""
    path = Path(path)
    hashes.require([path])
    if not path.exists():
        raise DataError(f"{path} does not exist; it should hold the table '{record.__name__}'.")
    try:
        found = pq.read_schema(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file ({error}). {hashes.advice(path)}") from error
    older = [name for name in records.later(record) if name not in found.names]
    wrong = _differences(found, records.schema(record), older)
    if wrong:
        raise DataError(
            f"{path} is not a table of '{record.__name__}' (format {records.FORMAT}): {'; '.join(wrong)}. "
            + hashes.advice(path)
        )
    return older


def _complete(path: Path, record: type, older: list[str], read_columns: Callable[[list[str]], pa.Table]) -> pa.Table:
    """Returns rows with all columns of the record, null in those that an older release lacks."""
    try:
        names = records.schema(record).names
        table = read_columns([name for name in names if name not in older])
        for name in older:
            table = table.append_column(name, pa.nulls(len(table)))
        return table.select(names).cast(records.schema(record))
    except (pa.ArrowException, OSError, ValueError) as error:  # corrupt data, or an unexpected null
        raise DataError(f"{path} cannot be read as '{record.__name__}' ({error}). {hashes.advice(path)}") from error


def _differences(found: pa.Schema, needed: pa.Schema, older: list[str]) -> list[str]:
    wrong = [f"column '{f.name}' is missing" for f in needed if f.name not in [*found.names, *older]]
    wrong += [f"column '{n}' is unknown" for n in found.names if n not in needed.names]
    for field in needed:
        if field.name in found.names and not found.field(field.name).type.equals(field.type):
            wrong.append(f"column '{field.name}' is {found.field(field.name).type}, needed {field.type}")
    return wrong


# ---------------------------------------------------------------------------------------------------- DuckDB

# SQL: the name of a row's stage; rows that one took of another (pipeline/job/trunks.py) have the same, and another hash
STAGE_NAME = "regexp_replace(stage, '-[0-9a-f]+$', '')"
SHOWN = ("shown", "sample_shown")  # images of agents, by step: in rows of experience, and of samples
# views with a stage column: stages may share rows
DATA = ("images", "pictures", *SHOWN, "raw", "tasks", "rejected")


class Rows(Sequence):
    """Rows of an Arrow table as records, made when they are asked for: a trainer only counts its tasks."""

    def __init__(self, table: pa.Table, record: type):
        self.table, self.record = table, record

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, place: int):
        return self.record(**self.table.slice(range(len(self))[place], 1).to_pylist()[0])

    def __iter__(self) -> Iterator:
        for batch in self.table.to_batches(max_chunksize=1024):
            yield from (self.record(**row) for row in batch.to_pylist())


def read_tasks(curated: Path, split: str, limit: int | None = None, taskset: str | None = None) -> Rows:
    """Returns the tasks of one split of a curate stage's directory in file order, at most `limit`.

    taskset: the set of that name with its own path; None: the others, split by curation.
    """
    import pyarrow.compute as pc

    table = read(Path(curated) / LOCATIONS["tasks"], records.Task)
    own = pc.is_null(table["taskset"]) if taskset is None else pc.equal(table["taskset"], taskset)
    chosen = table.filter(pc.and_(pc.equal(table["split"], split), pc.fill_null(own, False)))[:limit]
    return Rows(chosen, records.Task)


def read_scores(stage: Path, step: int) -> list[records.Score]:
    """Returns the scores of one evaluation by a stage: of the weights of `step`."""
    return [records.Score(**row) for row in read(step_file(stage, "scores", step), records.Score).to_pylist()]


def read_steps(stage: Path, table: str, steps: Iterable[int]) -> Rows:
    """Returns the rows of these steps of a table, in ascending order. Their files are read in one scan: a resumed stage
    has thousands."""
    import duckdb

    record, paths = records.TABLES[table], [step_file(stage, table, step) for step in steps]
    if not paths:
        return Rows(to_arrow([], record), record)
    scan = source(paths).removesuffix(")") + ", union_by_name=true, filename=file)"
    try:
        with sessions.new(2) as session:
            found = session.sql(f"SELECT * FROM {scan} ORDER BY "
                                "regexp_extract(file, '.*step=([0-9]+)', 1)::BIGINT").to_arrow_table()
    except duckdb.Error as error:
        refuse_damaged(error)
        raise
    for name in set(records.later(record)) - set(found.column_names):
        found = found.append_column(name, pa.nulls(len(found)))
    schema = records.schema(record)
    if absent := [name for name in schema.names if name not in found.column_names]:
        raise DataError(f"{paths[0].parent} is not a table of '{record.__name__}' (format {records.FORMAT}): its files "
                        f"have no {', '.join(absent)}. {hashes.advice(paths[0])}")
    return Rows(found.select(schema.names).cast(schema), record)


def connect(stages: Iterable[tuple[str, Path]] = (), threads: int = 2):
    """Returns an in-memory DuckDB session with a view per table over the (run name, stage directory) pairs.

    Every view starts with a column `run`, those of DATA then have a column `stage`. A table without files is an empty
    view with the right columns, so a query never fails for a missing file. Raises DataError when the first file of a
    view is corrupt.
    """
    import duckdb

    session = sessions.new(threads)
    pairs = list(stages)
    for name, record in records.TABLES.items():
        empty = pa.Table.from_batches([], records.schema(record))  # pa.table would import pandas: a second
        session.register(f"_empty_{name}", empty)
        stage_of = "{} AS stage, " if name in DATA else ""
        parts = [f"SELECT NULL::VARCHAR AS run, {stage_of.format('NULL::VARCHAR')}* FROM _empty_{name}"]
        read = ("pictures", *SHOWN) if name == "pictures" else (name,)
        for (run, stage), location in product(pairs, map(LOCATIONS.get, read)):
            if any(Path(stage).glob(location)):
                files_of = quoted(f"{_literal(stage)}/{location}")
                named = stage_of.format(quoted(Path(stage).name))
                grown = ", union_by_name=true" if records.later(record) else ""  # it opens every file
                parts.append(f"SELECT {quoted(run)} AS run, {named}* FROM read_parquet({files_of}, "
                             f"hive_partitioning=false{grown})")
        try:
            once = " DISTINCT ON (run, stage, hash)" if name == "pictures" else ""  # many steps may show one
            session.execute(f"CREATE VIEW {name} AS SELECT{once} * FROM ({' UNION ALL BY NAME '.join(parts)})")
        except duckdb.Error as error:
            refuse_damaged(error, [stage for _, stage in pairs])
            where = ", ".join(str(stage) for _, stage in pairs if any(Path(stage).glob(LOCATIONS[name])))
            raise DataError(f"no view '{name}' over {where}: {error}\nDelete the stage whose files are not of this "
                            "project, and run the same command again.") from error
    return session


def refuse_damaged(error: Exception, stages: Iterable[Path] = ()) -> None:
    """Raises DataError when DuckDB's error is about an existing Parquet file that cannot be read: one that it names,
    else one of these stages that is not what was written."""
    words = str(error).partition("\n")[0]
    named = re.search(r"""['"](.+\.parquet)['"]""", words)
    if named and (path := Path(named[1])).exists():
        raise DataError(f"{path} is not a readable Parquet file ({words}). {hashes.advice(path)}") from error
    for stage in stages:
        for home in (Path(stage), *(Path(stage) / table for table in PER_STEP)):
            for name, found in hashes.differences(home, hashes.recorded(home)).items():
                raise hashes.damaged(home / name, found) from error


@contextlib.contextmanager
def blamed(*stages: Path) -> Iterator[None]:
    """Turns an error of DuckDB within the block into a DataError, where a damaged file of these stages caused it."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        refuse_damaged(error, stages)
        raise


def source(paths: Iterable[Path]) -> str:
    """Returns the files as a table in SQL. Raises DataError for a file that is not what was written."""
    paths = list(paths)
    hashes.require(paths)
    return f"read_parquet([{', '.join(map(literal, paths))}], hive_partitioning=false)"


def literal(path: Path) -> str:
    """Returns a path as an SQL string without glob characters for DuckDB."""
    return quoted(_literal(path))


def quoted(text: str) -> str:
    """Returns a text as an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def _literal(path: Path) -> str:
    """Escapes DuckDB's glob characters in a path."""
    return re.sub(r"([*?[])", r"[\1]", str(path))
