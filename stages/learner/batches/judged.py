"""Rows of experience as the operators of experience_pipeline leave them: `curated` joined by id."""

from collections.abc import Iterable
from pathlib import Path

from ouroboros.pipeline.store import tables
from ouroboros.pipeline.store.locations import same_step

DROPPED = "dropped"  # the status of a row that an operator dropped


def judged(files: Iterable[Path]) -> str:
    """Returns experience files as a table in SQL; `curated` has a file of each of their steps.

    A row that was dropped has the status DROPPED and the reason, any other one the reward that operators gave it.
    Raises DataError for a file that is not what was written.
    """
    paths = list(files)
    verdicts = tables.source(same_step(path, "curated") for path in paths)
    return f"""(SELECT e.* REPLACE (coalesce(c.reward, e.reward) AS reward,
                       CASE WHEN c.operator IS NULL THEN e.status ELSE '{DROPPED}' END AS status,
                       coalesce(c.operator || ': ' || c.reason, e.reason) AS reason)
                FROM {tables.source(paths)} AS e LEFT JOIN {verdicts} AS c USING (experience_id))"""
