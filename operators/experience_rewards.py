"""Rewards of attempts for more than being right: quality of the response, and diversity within its group.

Of Trinity-RFT's paper (arXiv:2505.17826, section on experience shaping), where an embedding model tells how similar two
responses are; here their words do, so that no model is asked.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ouroboros.operators.curation import STATS, Dropped, Row
from ouroboros.operators.task_priority import QUALITY, mean_of
from ouroboros.pipeline.store.errors import DataError

Outcome = tuple[list[Row], list[Dropped]]


def quality_reward(rows: list[Row], weight: float) -> Outcome:
    """Adds weight times the score `quality`: the mean of the statistics of quality that operators before found.

    Each is from 0 to 1, turned around where small is good (operators/task_priority.py). An attempt without any is
    dropped: in its group it would be compared with others whose rewards have another meaning. Raises DataError where no
    attempt of the step has one.
    """
    found = mean_of({name: np.array([_number(row[STATS].get(name)) for row in rows]) for name in QUALITY}, QUALITY)
    if rows and np.isnan(found).all():
        raise DataError(f"quality_reward: no attempt of the step has a statistic of quality ({', '.join(QUALITY)}). "
                        "Needed an operator before it that gives one.")
    dropped = [Dropped(row["row"], "quality_reward", "no statistic of quality, which changes the reward of others",
                       row[STATS]) for row, value in zip(rows, found, strict=True) if np.isnan(value)]
    return [_rewarded(row, "quality", float(value), weight) for row, value in zip(rows, found, strict=True)
            if not np.isnan(value)], dropped


def diversity_reward(rows: list[Row], weight: float) -> Outcome:
    """Adds weight times the score `diversity`: one minus the mean cosine similarity of the response's word counts with
    those of the others of its group.

    0 for equal responses, for an empty one and for an attempt alone; 1 where no word is shared.
    """
    groups: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(row["group_id"], []).append(place)
    values = np.zeros(len(rows))
    for places in groups.values():
        values[places] = _diversity([rows[place]["response"] for place in places])
    return [_rewarded(row, "diversity", float(value), weight) for row, value in zip(rows, values, strict=True)], []


def _diversity(responses: Sequence[str]) -> np.ndarray:
    if len(responses) < 2:
        return np.zeros(len(responses))
    counts = [Counter(re.findall(r"\w+", text.lower())) for text in responses]
    places = {word: place for place, word in enumerate(dict.fromkeys(word for one in counts for word in one))}
    vectors = np.zeros((len(counts), len(places)))
    for row, one in zip(vectors, counts, strict=True):
        row[[places[word] for word in one]] = list(one.values())
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    similar = vectors @ vectors.T
    np.fill_diagonal(similar, 0)
    found = np.clip(1 - similar.sum(axis=1) / (len(counts) - 1), 0, 1)
    return np.where([bool(one) for one in counts], found, 0)


def _rewarded(row: Row, name: str, value: float, weight: float) -> Row:
    return row | {"reward": row["reward"] + weight * value, STATS: row[STATS] | {name: value}}


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float | np.number) and np.isfinite(value) else np.nan
