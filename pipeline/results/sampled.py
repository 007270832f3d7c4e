"""A bounded sample of a run's rollouts for its report, stratified by stage, outcome and third of the stage's steps.

Each stratum gives as many rows as any other, or all that it has; which ones, a hash of their keys decides, so that the
sample of the same rows is the same. Token columns are never read, and texts only of the steps that have a chosen row.
"""

import shlex
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from ouroboros.pipeline.results.findings import records
from ouroboros.pipeline.results.thumbnails import thumbnails
from ouroboros.pipeline.store import tables

MOST = 200  # rows
THIRDS = ("first", "middle", "last")
# columns that identify a row
KEYS = {"experience": ("experience_id",),
        "samples": ("stage", "model", "step", "taskset", "task_id", "decoding", "run_index")}
COLUMNS = {"experience": "reward_components, weights_version, turn, pictures",
           "samples": "model, decoding, taskset, pictures"}
EDGE = 160  # pixels of an image's longer side
IMAGES = 8  # of a row that are shown
# Where a reward function has no accuracy, the range of the stage's rewards is cut in three.
OUTCOME = """CASE WHEN status IN ('no_feedback', 'not_played') THEN 'not rewarded' WHEN reward IS NULL THEN 'failed'
    WHEN accuracy >= 1 THEN 'right' WHEN accuracy <= 0 THEN 'wrong' WHEN accuracy IS NOT NULL THEN 'partly right'
    WHEN reward >= high - (high - low) / 3 THEN 'high reward' WHEN reward < low + (high - low) / 3 THEN 'low reward'
    ELSE 'middle reward' END"""
OUTCOMES = ("failed", "wrong", "partly right", "right", "low reward", "middle reward", "high reward", "not rewarded")


def sample(session, run: str, stages: Sequence[Path]) -> dict[str, Any] | None:
    """Returns at most MOST rows of `experience`, of a run without them of `samples`; None where there is none.

    stages: directories of those that have the images of prompts. `rows`, in order of stage and step, have the first
    `images` (as in thumbnails.py, `edge` pixels at most) of `image_count`; `strata` has the number of `shown` and `all`
    rows by stage and outcome.
    """
    for table in KEYS:
        if chosen := _chosen(session, table):
            rows = _rows(session, table, chosen, run, stages)
            return {"rows": rows, "table": table, "most": MOST, "edge": EDGE, "strata": _strata(chosen), "outcomes": [
                one for one in OUTCOMES if any(row["outcome"] == one for row in rows)]}
    return None


def _key(table: str) -> str:
    return f"concat_ws(chr(31), {', '.join(KEYS[table])})"


def _chosen(session, table: str) -> list[dict[str, Any]]:
    """Reads no texts. `total`: rows of the stratum."""
    return records(session, f"""
        WITH named AS (SELECT *, {tables.STAGE_NAME} AS name FROM {table}),
        ends AS (
            SELECT name, min(step) AS first, max(step) AS last, min(reward) FILTER (accuracy IS NULL) AS low,
                   max(reward) FILTER (accuracy IS NULL) AS high FROM named GROUP BY name),
        rows AS (
            SELECT name AS stage, step, {_key(table)} AS key, {OUTCOME} AS outcome,
                   (step - first) * 3 // (last - first + 1) AS third FROM named JOIN ends USING (name)),
        strata AS (
            SELECT stage, outcome, third, count(*) AS total,
                   arg_min({{key: key, step: step}}, (md5_number_lower(key), key), {MOST}) AS least
            FROM rows GROUP BY ALL),
        placed AS (
            SELECT * EXCLUDE (least), unnest(least) AS one, generate_subscripts(least, 1) AS place FROM strata)
        SELECT stage, outcome, third, total, one.key AS key, one.step AS step FROM placed
        ORDER BY place, md5_number_lower(one.key), one.key LIMIT {MOST}""")


def _rows(session, table: str, chosen: list[dict[str, Any]], run: str, stages: Sequence[Path]) -> list[dict[str, Any]]:
    """Reads what the page shows of the chosen rows."""
    known = {one["key"]: one for one in chosen}
    steps = ", ".join(str(step) for step in sorted({one["step"] for one in chosen}))  # literals: it skips other files
    keys = ", ".join(dict.fromkeys((*KEYS[table], "stage", "step")))
    found = records(session, f"""
        SELECT {_key(table)} AS key, {keys}, {COLUMNS[table]}, prompt, response, reward, accuracy, status, reason,
               (SELECT any_value(answer) FROM tasks WHERE tasks.task_id = {table}.task_id) AS answer,
               (SELECT any_value(tasks.pictures) FROM tasks WHERE tasks.task_id = {table}.task_id) AS of_task
        FROM {table} WHERE step IN ({steps}) AND {_key(table)} IN (SELECT unnest($1::VARCHAR[]))
        ORDER BY stage, step, key""", (list(known),))
    return [{**row, "outcome": known[row["key"]]["outcome"], "third": THIRDS[known[row["key"]]["third"]],
             "name": row["stage"].rpartition("-")[0], **_links(table, row, run), **_images(row, stages)}
            for row in found]


def _images(row: dict[str, Any], stages: Sequence[Path]) -> dict[str, Any]:
    hashes = (row["of_task"] if row.get("pictures") is None else row["pictures"]) or []
    return {"images": thumbnails(hashes[:IMAGES], stages, EDGE, row["step"]), "image_count": len(hashes)}


def _links(table: str, row: dict[str, Any], run: str) -> dict[str, str]:
    """Returns where the row is in the page of `ouro view`, and the command that prints it."""
    keys = {name: row[name] for name in KEYS[table]}
    where = " AND ".join(f"{name} = {tables.quoted(str(value))}" for name, value in keys.items())
    question = f"SELECT * FROM {table} WHERE {where}"
    said = f'"{question}"' if not set(question) & set('"$`\\!') else shlex.quote(question)
    asked = {"steps" if name == "step" else name: value for name, value in keys.items()}
    asked |= {"stage": row["stage"].rpartition("-")[0], "table": table}
    return {"view": f"#/run/{quote(run)}/rollouts?{urlencode(asked)}",
            "sql": f"ouro sql {said} {shlex.quote(run)}"}


def _strata(chosen: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, int]]]:
    """Returns stage -> outcome -> rows shown and rows of the same strata in all."""
    totals = {(one["stage"], one["outcome"], one["third"]): one["total"] for one in chosen}
    counts: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
    for stage, outcome, _ in sorted(totals, key=lambda one: (one[0], OUTCOMES.index(one[1]))):
        mine = [one for one in chosen if (one["stage"], one["outcome"]) == (stage, outcome)]
        counts[stage][outcome] = {"shown": len(mine), "all": sum(
            total for key, total in totals.items() if key[:2] == (stage, outcome))}
    return dict(counts)
