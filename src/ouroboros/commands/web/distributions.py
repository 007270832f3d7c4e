"""Distributions by step of what rows have: reward and its components, response length, advantage.

The rows of a step are counted once (counted.py), by values rounded to two digits.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ouroboros.commands.web import rollouts
from ouroboros.commands.web.counted import by_step
from ouroboros.pipeline.results.view import View

BINS = 24  # at most: as many as there are values
POINTS = 300  # of a distribution; neighbouring steps of more are counted together
# of a table, the column that has the step, and the values of a row
VALUES = {
    "experience": ("step", """list_concat([{'name': 'reward', 'value': reward},
        {'name': 'response length, tokens', 'value': len(response_tokens)::DOUBLE}], list_transform(
        map_entries(reward_components), lambda one: {'name': 'reward component ' || one.key, 'value': one.value}))"""),
    "trained": ("train_step", "[{'name': 'advantage', 'value': advantage}]"),
}
COUNT = """, given AS (SELECT {step} AS step, unnest({values}, max_depth := 2) FROM rows),
    counted AS (SELECT step, name, count(*) AS rows, avg(value) AS mean, stddev_pop(value) AS deviation, histogram(
        CASE WHEN value = 0 THEN 0 ELSE round(value, 1 - floor(log10(abs(value)))::INT) END) AS counts
        FROM given WHERE isfinite(value) GROUP BY ALL)
    SELECT * EXCLUDE (counts), map_keys(counts) AS keys, map_values(counts) AS counts FROM counted"""


@dataclass(frozen=True)
class Counted:
    """Rows of one step or of several: how many, the mean and the standard deviation of a value of theirs, and how many
    have each rounded value."""

    rows: int
    mean: float
    deviation: float
    counts: dict[float, int]


def count(table: str, paths: Mapping[int, Path]) -> dict[int, dict[str, Counted]]:
    """Returns step -> name of a value -> its rows."""
    found: dict[int, dict[str, Counted]] = {step: {} for step in paths}
    column, values = VALUES[table]
    for one in rollouts.ask([*paths.values()], COUNT.format(step=column, values=values), []):
        counts = dict(zip(one["keys"], one["counts"], strict=True))
        found[one["step"]][one["name"]] = Counted(one["rows"], one["mean"], one["deviation"], counts)
    return found


def of_run(run: View) -> list[dict[str, Any]]:
    """Returns the distributions of each stage that explores: `stage`, `name`, `x` (steps), `y` (the mean), `low` and
    `high` (a standard deviation away), and `shares`, `of` each bin between `low` and `high`, at each x."""
    return [{"stage": stage.name, **made} for stage in run.stages for table in VALUES
            if (stage.directory / "experience").is_dir() for made in _of_table(by_step(stage.directory, table, count))]


def _of_table(found: dict[int, dict[str, Counted]]) -> Iterator[dict[str, Any]]:
    for name in sorted({name for of in found.values() for name in of}):
        steps = [step for step, of in found.items() if name in of]
        parts = np.array_split(steps, min(len(steps), POINTS))
        ones = [merged([found[step][name] for step in part]) for part in parts]
        values = {value for one in ones for value in one.counts}
        edges = np.histogram_bin_edges([*values], min(BINS, len(values)))
        shares = [np.histogram([*one.counts], edges, weights=[*one.counts.values()])[0] / one.rows for one in ones]
        yield {"name": name, "x": [float(part.mean()) for part in parts], "y": [one.mean for one in ones],
               "low": [one.mean - one.deviation for one in ones], "high": [one.mean + one.deviation for one in ones],
               "shares": {"low": edges[0], "high": edges[-1], "of": [np.round(one, 4).tolist() for one in shares]}}


def merged(ones: Sequence[Counted]) -> Counted:
    """Returns the rows of several steps as those of one."""
    weights = np.array([one.rows for one in ones], float)
    means, deviations = (np.array([getattr(one, name) for one in ones]) for name in ("mean", "deviation"))
    mean = np.average(means, weights=weights)
    variance = np.average(deviations**2 + means**2, weights=weights) - mean**2
    counts: dict[float, int] = {}
    for one in ones:
        for value, count in one.counts.items():
            counts[value] = counts.get(value, 0) + count
    return Counted(int(weights.sum()), float(mean), float(np.sqrt(max(variance, 0))), counts)
