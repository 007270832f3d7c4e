"""The table `profile`: avg@k and pass@k of every task that a stage with mode=explore attempted.

Selectors of later stages read them as features, `stages.NAME.avg_at_k` and `stages.NAME.pass_at_k`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ouroboros.pipeline.job.tasksets import PROFILE
from ouroboros.pipeline.settings.data import profiled
from ouroboros.pipeline.store import records, sessions, tables

Rates = dict[str, dict[tuple[str, str], dict[str, Any]]]  # stage -> set and task_id -> its row

# an attempt is its last turn, or the mean of its players', as where a step is measured (stages/explorer/selections.py)
QUERY = """
WITH players AS (
    SELECT step, slot, taskset, task_id, accuracy, reward, status IN ('ok', 'no_variance') AS good
    FROM (FROM {} UNION ALL BY NAME SELECT NULL::VARCHAR AS role WHERE false)
    WHERE run_index < ? QUALIFY row_number() OVER (PARTITION BY step, slot, role ORDER BY turn DESC) = 1),
attempts AS (
    SELECT taskset, task_id, if(bool_and(accuracy IS NOT NULL), avg(accuracy), NULL) AS accuracy,
           avg(reward) AS reward, bool_and(good) AS good
    FROM players GROUP BY step, slot, taskset, task_id),
rated AS (
    SELECT *, if(bool_and(accuracy IS NOT NULL) FILTER (good) OVER (PARTITION BY taskset, task_id), accuracy, reward)
           AS rate FROM attempts)
SELECT ? AS stage, taskset, task_id, count(*)::INTEGER AS attempts, (count(*) FILTER (good))::INTEGER AS rewarded,
       avg(rate) FILTER (good) AS avg_at_k, max(rate) FILTER (good) AS pass_at_k
FROM rated GROUP BY taskset, task_id ORDER BY taskset, task_id"""


def write_profile(stage: Path, repeats: int) -> int:
    """Writes the table of a stage; returns its number of tasks. repeats: attempts of a group, without a greedy one."""
    steps = [tables.step_file(stage, "experience", step) for step in tables.steps_present(stage, "rollouts")]
    with sessions.new(2) as session:
        found = session.sql(QUERY.format(tables.source(steps)), params=[repeats, stage.name]).to_arrow_table()
    tables.write(stage / tables.LOCATIONS["profile"], records.Profile, found)
    return len(found)


def read_profiles(inputs: Mapping[str, Path]) -> Rates:
    """The tables of the stages among the inputs of a stage."""
    return {role.removeprefix(PROFILE): {(row["taskset"], row["task_id"]): row for row in tables.read(
        place / tables.LOCATIONS["profile"], records.Profile).to_pylist()}
        for role, place in inputs.items() if role.startswith(PROFILE)}


def rate_of(key: str, taskset: str, task_id: str, rates: Rates) -> float | None:
    """What a stage measured of a task: 0 where no attempt was rewarded; None where the key names no such rate, or the
    stage did not attempt the task."""
    if (named := profiled(key)) is None:
        return None
    row = rates[named[0]].get((taskset, task_id))
    return None if row is None else row[named[1]] or 0.0
