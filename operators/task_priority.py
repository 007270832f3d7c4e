"""The order of curated tasks by priority, and the first top_k of them (Trinity-RFT guide, task_pipeline).

    priority = sum of weight x value over difficulty, diversity, quality, usage_frequency

Quality and difficulty are means of statistics that operators before found (QUALITY, DIFFICULTY), each from 0 to 1 and
turned around where small is good, 0.5 without any; perplexity, which has no bound, lies between the least and the
greatest of the set. Diversity is one minus the mean share of the set's tasks that have a word of the task, over its
distinct words: Trinity-RFT accepts that weight and ignores it. usage_frequency is 0 for all: no task was used yet.
"""

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ouroboros.operators.curation import STATS, Dropped, Row
from ouroboros.pipeline.settings.arguments.rows import PRIORITY_WEIGHTS

NAME = "priority"  # as an operator that drops rows
HALF = 0.5  # value of a task without statistics
BUCKETS = 1 << 20  # of the hashes of words
WORDS = "words"
RISING, FALLING = 1, -1
QUALITY = {"alnum_ratio": RISING, "char_rep_ratio": FALLING, "flagged_words_ratio": FALLING,
           "special_char_ratio": FALLING, "stopwords_ratio": RISING, "word_rep_ratio": FALLING,
           "llm_quality_score": RISING}
DIFFICULTY = {"perplexity": RISING, "lang_score": FALLING, "llm_difficulty_score": RISING}
UNBOUNDED = "perplexity"

Tables = Callable[[], Iterator[pa.Table]]


@dataclass(frozen=True)
class Ranks:
    """Of the rows of a shard. keep: bool [rows]. score: float64 [rows], NaN where a row is not for training. place:
    int64 [rows], position in the order of the set, from 0. count: tasks for training in the set."""

    keep: np.ndarray
    score: np.ndarray
    place: np.ndarray
    count: int


@dataclass(frozen=True)
class Priority:
    """Orders the tasks for training of a set (split train).

    weights: of the values; {}: the guide's. top_k: -1 = all.
    """

    weights: dict[str, float]
    top_k: int = -1

    @property
    def operator(self) -> "Priority":
        """What errors name."""
        return self

    @property
    def _name(self) -> str:
        return NAME

    def column(self, rows: Sequence[Row]) -> pa.Table:
        """What is needed of the rows of a shard."""
        names = [*QUALITY, *DIFFICULTY]
        found = {name: pa.array([_number(row[STATS].get(name)) for row in rows], pa.float64()) for name in names}
        words = [_words(row["question"]) if self._of("diversity") else [] for row in rows]
        return pa.table({"row": pa.array([row["row"] for row in rows], pa.int64()),
                         "trains": pa.array([row["split"] in (None, "train") for row in rows], pa.bool_()),
                         WORDS: pa.array(words, pa.list_(pa.int32())), **found})

    def judge(self, tables: Tables) -> list[Ranks]:
        """The place of each row. tables: those of `column`, which are read twice."""
        common, bounds, count = self._measured(tables)
        parts = [self._scores(table, common, bounds) for table in tables()]
        trains = np.concatenate([np.zeros(0, bool), *(table["trains"].to_numpy() for table in tables())])
        score = np.where(trains, np.concatenate([np.zeros(0), *parts]), np.nan)
        place = np.empty(len(score), np.int64)
        place[np.lexsort((np.arange(len(score)), -np.where(trains, score, 0), ~trains))] = np.arange(len(score))
        keep = ~trains | (place < (count if self.top_k < 0 else self.top_k))
        cuts = np.cumsum([len(part) for part in parts])[:-1]
        split = (np.split(one, cuts) for one in (keep, score, place))
        return [Ranks(*each, count) for each in zip(*split, strict=True)]

    def apply(self, rows: Sequence[Row], ranks: Ranks) -> tuple[list[Row], list[Dropped]]:
        """The rows of a shard with their priority and place, and the dropped ones."""
        kept, dropped = [], []
        for row, keep, score, place in zip(rows, ranks.keep, ranks.score.tolist(), ranks.place.tolist(), strict=True):
            if keep:
                kept.append({**row, "priority": None if np.isnan(score) else score, "place": place})
            else:
                reason = f"priority {score:.4g}, place {place + 1} of {ranks.count}; kept the first {self.top_k}"
                dropped.append(Dropped(row["row"], NAME, reason))
        return kept, dropped

    def _of(self, name: str) -> float:
        return (self.weights or PRIORITY_WEIGHTS).get(name, 0.0)

    def _measured(self, tables: Tables) -> tuple[np.ndarray, tuple[float, float], int]:
        """For each bucket of words the share of tasks with one of it [BUCKETS]; bounds of perplexity; tasks."""
        tasks, low, high, count = np.zeros(BUCKETS), np.inf, -np.inf, 0
        for table in tables():
            table = table.filter(table["trains"])
            count += len(table)
            np.add.at(tasks, pc.list_flatten(table[WORDS]).to_numpy(), 1)
            if (found := pc.min_max(table[UNBOUNDED]).as_py())["min"] is not None:
                low, high = min(low, found["min"]), max(high, found["max"])
        return tasks / max(count, 1), (low, high), count

    def _scores(self, table: pa.Table, common: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
        values = {"quality": _mean(table, QUALITY, bounds), "difficulty": _mean(table, DIFFICULTY, bounds),
                  "diversity": _diversity(table[WORDS], common), "usage_frequency": np.zeros(len(table))}
        return sum((self._of(name) * value for name, value in values.items()), np.zeros(len(table)))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float | np.number) and np.isfinite(value) else None


def _words(text: str) -> list[int]:
    """Buckets of the distinct words of a text."""
    return sorted({zlib.crc32(word.encode()) % BUCKETS for word in re.findall(r"\w+", text.lower())})


def mean_of(found: Mapping[str, np.ndarray], names: Mapping[str, int], bounds: tuple[float, float] = (0, 1)
            ) -> np.ndarray:
    """The mean [rows] of those statistics that a row has, each from 0 to 1, turned around where small is good.

    found: name -> [rows], NaN where a row has none. bounds: of perplexity. NaN where a row has none of the names.
    """
    values = []
    for name, sign in names.items():
        low, high = bounds if name == UNBOUNDED else (0, 1)
        value = (found[name] - low) / (high - low) if high > low else np.where(np.isnan(found[name]), np.nan, HALF)
        values.append(np.clip(value, 0, 1) if sign == RISING else 1 - np.clip(value, 0, 1))
    known = np.isfinite(values).sum(axis=0)
    return np.where(known > 0, np.nansum(values, axis=0) / np.maximum(known, 1), np.nan)


def _mean(table: pa.Table, names: dict[str, int], bounds: tuple[float, float]) -> np.ndarray:
    found = mean_of({name: table[name].to_numpy(zero_copy_only=False).astype(float) for name in names}, names, bounds)
    return np.where(np.isnan(found), HALF, found)


def _diversity(words: pa.ChunkedArray, common: np.ndarray) -> np.ndarray:
    lengths = pc.list_value_length(words).to_numpy()
    rows = np.repeat(np.arange(len(lengths)), lengths)
    shares = np.bincount(rows, common[pc.list_flatten(words).to_numpy()], len(lengths))
    return np.where(lengths > 0, 1 - shares / np.maximum(lengths, 1), 0.0)
