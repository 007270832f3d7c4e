"""Deduplicators and selectors of Data-Juicer: they judge all rows at once, by a column of hashes or scores.

Rows are read a shard at a time (`column`); `judge` sees no more of them than that, and its verdicts are applied to the
shards one after the other. Operators that edit texts or read several columns are given all of the rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ouroboros.operators.curation import META, STATS, Dropped, Row

ALWAYS = {"skip_op_error": False, "turbo": True, "auto_op_parallelism": False}
EXACT, TOP = "document_deduplicator", "topk_specified_field_selector"  # judged here, in a few bytes a row
ON_HASHES = (EXACT, "document_minhash_deduplicator", "document_simhash_deduplicator")
# held for a row and permutation, by `python -m benchmarks.curation --deduplicator`: 19 kB with 256
BYTES = {"document_minhash_deduplicator": 19_000 / 256}
ALONE = -1  # in place of the row that a row repeats
HASHES = "hashes"  # metadata of a column: names of what a deduplicator added

Tables = Callable[[], Iterator[pa.Table]]  # the columns of the shards, in order, as often as they are asked for


@dataclass(frozen=True)
class Verdicts:
    """On the rows of a shard. keep: bool [rows]. twin: int64 [rows], row that one repeats, or ALONE. hashes: names of
    what was compared. edited: those of them that the operator changed, by number; None: it changes none."""

    keep: np.ndarray
    twin: np.ndarray | None = None
    hashes: tuple[str, ...] = ()
    edited: dict[int, Row] | None = None


@dataclass(frozen=True)
class Whole:
    """A deduplicator or selector. dataset: a table as one data set of Data-Juicer."""

    operator: Any
    dataset: Callable[[pa.Table], Any]

    def column(self, rows: Sequence[Row]) -> pa.Table:
        """What the operator reads of the rows of a shard besides their numbers: hashes, a field, nothing, or all."""
        operator, config = self.operator, str(self.operator._op_cfg)
        whole = [{k: v for k, v in row.items() if k not in (STATS, META) or k in config} for row in rows]
        if hasattr(operator, "compute_hash"):
            hashed = _hashed(operator, [dict(row) for row in whole])
            added = tuple(name for name in hashed[0] if name not in whole[0]) if rows else ()
            read = [{"row": row["row"], **{name: row[name] for name in added}} for row in hashed]
            table = pa.Table.from_pylist(read if operator._name in ON_HASHES else hashed)
            return table.replace_schema_metadata({HASHES: ",".join(added)})
        if field := getattr(operator, "field_key", None):
            return pa.Table.from_pylist([{"row": row["row"], **_leaf(row, field.split("."))} for row in rows])
        alone = operator._name == "random_selector"
        return pa.Table.from_pylist([{"row": row["row"]} for row in rows] if alone else whole)

    def judge(self, tables: Tables) -> list[Verdicts]:
        """The verdicts on each shard. tables: of `column`."""
        lengths = [len(table) for table in tables()]
        if not any(lengths):
            return [Verdicts(np.zeros(0, bool)) for _ in lengths]
        own = {EXACT: _first_of_each, TOP: self._top}.get(self.operator._name)
        found = (own and own(tables)) or self._asked(tables)
        parts, begin = [], 0
        for table in tables():
            part = slice(begin, begin + len(table))
            parts.append(Verdicts(found.keep[part], None if found.twin is None else found.twin[part], found.hashes,
                                  found.edited and _edited(found.edited, table)))
            begin += len(table)
        return parts

    def _top(self, tables: Tables) -> Verdicts | None:
        """Keeps the rows with the greatest or least numbers, of equal ones the first, as Data-Juicer does; None where a
        value is no number."""
        path = (self.operator.field_key or "").split(".")
        found = [_numbers(table, path) for table in tables() if len(table)]
        if any(one is None for one in found):
            return None
        numbers = np.concatenate(found)
        ratio, most = self.operator.top_ratio, self.operator.topk
        wanted = ([int(ratio * len(numbers))] if ratio else []) + ([most] if most else [])
        if len(numbers) < 2 or not wanted:
            return Verdicts(np.ones(len(numbers), bool))
        keep = np.zeros(len(numbers), bool)
        keep[np.argsort(-numbers if self.operator.reverse else numbers, kind="stable")[: min(wanted)]] = True
        return Verdicts(keep)

    def _asked(self, tables: Tables) -> Verdicts:
        """Asks Data-Juicer's own operator, over one data set of all shards."""
        table = pa.concat_tables([one for one in tables() if len(one)], promote_options="permissive")
        hashes = tuple(filter(None, (table.schema.metadata or {}).get(HASHES.encode(), b"").decode().split(",")))
        found = self.operator.process(self.dataset(table.replace_schema_metadata(None)))
        left = found[0] if hasattr(self.operator, "compute_hash") else found
        keep = np.isin(table["row"].to_numpy(), np.asarray(left["row"]))
        if not hasattr(self.operator, "compute_hash"):
            return Verdicts(keep)
        edited = None if self.operator._name in ON_HASHES else {row["row"]: row for row in left.to_list()}
        return Verdicts(keep, _twins(table.select(["row", *hashes]), keep), hashes, edited)

    def apply(self, rows: Sequence[Row], verdicts: Verdicts) -> tuple[list[Row], list[Dropped]]:
        """The rows of a shard that are kept, in order, and the dropped ones with their reasons."""
        name = self.operator._name
        settings = {k: v for k, v in self.operator._op_cfg[name].items() if k not in ALWAYS}
        kept, dropped = [], []
        for place, row in enumerate(rows):
            if verdicts.keep[place]:
                edited = (verdicts.edited or {}).get(row["row"], {})
                kept.append({**row, **{k: v for k, v in edited.items() if k in row}})
                continue
            if verdicts.twin is None:
                reason = f"not selected by {settings}"
            elif verdicts.twin[place] == ALONE:
                reason = f"near duplicate by {' and '.join(verdicts.hashes)}"
            else:
                reason = f"duplicate of row {verdicts.twin[place]}"
            dropped.append(Dropped(row["row"], name, reason))
        return kept, dropped


def _edited(rows: dict[int, Row], table: pa.Table) -> dict[int, Row]:
    """Those of the rows that are of one shard."""
    numbers = table["row"].to_pylist() if len(table) else ()
    return {number: rows[number] for number in numbers if number in rows}


def _numbers(table: pa.Table, path: list[str]) -> np.ndarray | None:
    """The column that a path leads to, float64 [rows]; None where it does not, or not to numbers."""
    if path[0] not in table.column_names:
        return None
    column = table[path[0]].combine_chunks()
    for name in path[1:]:
        if not pa.types.is_struct(column.type) or column.type.get_field_index(name) < 0 or column.null_count:
            return None
        column = column.field(name)
    if column.null_count or not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        return None
    numbers = column.to_numpy(zero_copy_only=False).astype(float)
    return None if np.isnan(numbers).any() else numbers


def _hashed(operator, rows: list[Row]) -> list[Row]:
    if not operator.is_batched_op() or not rows:
        return [operator.compute_hash(row) for row in rows]
    columns = operator.compute_hash({name: [row[name] for row in rows] for name in rows[0]})
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _leaf(row: Row, path: list[str]) -> Row:
    """The part of a row below one path; the whole struct where it does not lead to anything."""
    first, *below = path
    if first not in row:
        return {}
    inner = row[first]
    return {first: _leaf(inner, below) if below and isinstance(inner, dict) and below[0] in inner else inner}


def _first_of_each(tables: Tables) -> Verdicts:
    """Keeps the first row of each hash, as Data-Juicer does: 16 bytes a row and a sort in place of a set of texts."""
    digests = np.concatenate([np.frombuffer(bytes.fromhex("".join(table.column(1).to_pylist())), np.uint64)
                              for table in tables() if len(table)]).reshape(-1, 2)
    numbers = np.concatenate([table["row"].to_numpy() for table in tables() if len(table)])
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    repeats = np.zeros(len(order), bool)
    repeats[1:] = (digests[order[1:]] == digests[order[:-1]]).all(axis=1)
    firsts = np.maximum.accumulate(np.where(repeats, 0, np.arange(len(order))))
    keep, twin = np.ones(len(order), bool), np.full(len(order), ALONE)
    keep[order[repeats]] = False
    twin[order[repeats]] = numbers[order[firsts[repeats]]]
    return Verdicts(keep, twin, ("hash",))


def _twins(table: pa.Table, keep: np.ndarray) -> np.ndarray:
    """For each row that was dropped the kept one before it with the same hashes, or ALONE."""
    first: dict[int, int] = {}
    twin = np.full(len(keep), ALONE)
    place = 0
    for batch in table.to_batches(max_chunksize=1000):
        for number, *hashes in zip(*batch.to_pydict().values(), strict=True):
            key = hash(str(hashes))
            if keep[place]:
                first.setdefault(key, number)
            else:
                twin[place] = first.get(key, ALONE)
            place += 1
    return twin
