"""Whether two finished stages made the same: weights by hash, and tables in every column but those that name the stage
that made a row, or measure time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ouroboros.pipeline.store import files, records, tables
from ouroboros.pipeline.store.recovery import EVALUATED

# ends of names. The probe is scored whenever weights are loaded, once more by a resumed explorer, and its tokens are
# those of the last batch, which a resumed trainer does not have.
MEASURED = ("seconds", "memory_gib", "load", "start", "probe_max_difference")
MAKERS = ("stage", "model", "config_hash", "commit")


def rows(stage: Path, table: str) -> list[dict[str, Any]]:
    """Returns the rows of a table of a stage without what is not compared; of ids what follows the stage's name."""
    record, found = records.TABLES[table], []
    for path in sorted(stage.glob(tables.LOCATIONS[table])):
        read = tables.read(path, record)
        kept = [name for name in read.column_names if name not in MAKERS and not name.endswith(MEASURED)]
        found += [{name: _bare(value, stage) if isinstance(value, str) else value for name, value in row.items()}
                  for row in read.select(kept).to_pylist()]
    return found


def _bare(text: str, stage: Path) -> str:
    """Returns an id without the name of the stage that made the row, which has the name of this one and a hash."""
    head, slash, rest = text.partition("/")
    return rest if slash and head.rpartition("-")[0] == stage.name.rpartition("-")[0] else text


def differences(one: Path, other: Path, evaluated: bool = True) -> Iterator[str]:
    """Yields for each table, and for the weights, where two complete stages begin to differ.

    evaluated: also the evaluations on the way, which do not depend on what the stage trains.
    """
    hashes = [files.read_json(stage / files.MANIFEST).get("weights_hash") for stage in (one, other)]
    if hashes[0] != hashes[1]:
        yield f"weights: hash {hashes[0]} and {hashes[1]}"
    for table in tables.LOCATIONS:
        if evaluated or table not in EVALUATED:
            ours, theirs = rows(one, table), rows(other, table)
            if len(ours) != len(theirs):
                yield f"{table}: {len(ours)} rows and {len(theirs)}"
            elif ours != theirs:
                yield f"{table}: {_first(ours, theirs)}"


def _first(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> str:
    """Returns the first row and column in which tables differ."""
    row, mine, other = next((number, *pair) for number, pair in enumerate(zip(ours, theirs, strict=True), 1)
                            if pair[0] != pair[1])
    column = next(name for name in mine if mine[name] != other.get(name))
    return f"row {row} (step {mine.get('step')}), {column}: {str(mine[column])[:80]} and {str(other.get(column))[:80]}"
