"""Whether the rows of a stage belong together: before its manifest is written, and in `ouro verify`.

Files that are whole can still be the wrong ones: a step that was never made, a step of another number. Steps that
`lost.json` lists (pipeline/store/recovery.py) are left out of every comparison.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from ouroboros.pipeline.store import recovery, tables
from ouroboros.pipeline.store.errors import StageError

# (tables that a stage writes, what a number other than 0 means, SQL; column `run` is 'own', or the role of an input)
OWN, KEPT = "run = 'own'", "step NOT IN (SELECT step FROM lost)"
TWICE = "SELECT count(*) - count(DISTINCT step) FROM {} WHERE run = 'own'"
LINE = (
    (("rejected",), "rows of raw.parquet in neither tasks.parquet nor rejected.parquet",
     f"SELECT (SELECT count(*) FROM raw) - (SELECT count(*) FROM tasks WHERE {OWN}) - (SELECT count(*) FROM rejected)"),
    (("experience",), "rows of experience whose task is not in tasks.parquet",
     f"SELECT count(*) FROM experience WHERE {OWN} AND task_id NOT IN (SELECT task_id FROM tasks WHERE run = 'tasks')"),
    (("rollouts",), "explorer steps with more than one row", TWICE.format("rollouts")),
    (("rollouts", "experience"), "explorer steps with another number of rows than recorded",
     f"""SELECT count(*) FROM (SELECT step, max(rows) AS rows, max(attempts) AS attempts FROM rollouts WHERE {OWN}
         GROUP BY step) r FULL JOIN (SELECT step, list(slot) AS slots FROM experience WHERE {OWN} GROUP BY step) e
         USING (step) WHERE len(list_filter(slots, lambda slot: slot < attempts)) IS DISTINCT FROM rows AND {KEPT}"""),
    (("rollouts", "steps"), "explorer steps with weights of an optimizer step that does not exist",
     f"SELECT count(*) FROM rollouts WHERE {OWN} AND weights_version > 0 AND weights_version NOT IN "
     f"(SELECT step FROM steps WHERE {OWN} UNION SELECT step FROM lost)"),
    (("steps",), "optimizer steps with more than one row", TWICE.format("steps")),
    (("trained",), "trained rows that are not in experience",
     f"SELECT count(*) FROM trained WHERE {OWN} AND NOT is_expert AND experience_id NOT IN "
     "(SELECT experience_id FROM experience) AND NOT EXISTS (FROM lost WHERE name = 'experience')"),
    (("trained", "steps"), "optimizer steps with another number of trained rows than recorded",
     f"""SELECT count(*) FROM (SELECT step, trained_rows FROM steps WHERE {OWN}) FULL JOIN (SELECT train_step AS step,
         count(*) AS found FROM trained WHERE {OWN} GROUP BY train_step) USING (step)
         WHERE trained_rows IS DISTINCT FROM found AND {KEPT}"""),
    (("samples",), "responses to tasks that are not in tasks.parquet",
     f"SELECT count(*) FROM samples WHERE {OWN} AND task_id NOT IN (SELECT task_id FROM tasks WHERE run = 'tasks')"),
)
NUMBERED = (("rollouts", "explorer_steps", "explorer"), ("steps", "steps", "optimizer"))


def inconsistencies(stage: Path, written: Collection[str], inputs: Mapping[str, Path],
                    manifest: Mapping) -> Iterator[str]:
    """Yields what is inconsistent among the rows of a finished stage and those of its inputs.

    written: tables that every stage of its kind writes. manifest: its `steps` or `explorer_steps` are the last that
    must be there. Raises DataError for a file that cannot be read.
    """
    lost = recovery.lost(stage)
    for table, key, what in NUMBERED:
        if table in written:
            present = {*tables.steps_present(stage, table)}
            last = manifest.get(key, max(present, default=0))
            missing = {*range(1, last + 1)} - present - {step for name, step in lost if name == table}
            if missing:
                yield f"{len(missing):,} {what} steps missing before the last one: {_some(missing)}"
            if over := {step for step in present if step > last}:
                yield f"{what} steps after the last one, {last}: {_some(over)}"
    checks = [(what, question) for needed, what, question in LINE if {*needed} <= {*written}]
    if not checks:
        return
    read = [(role, place) for role, place in inputs.items() if role in ("tasks", "experience")]
    with tables.connect([("own", stage), *read]) as session:
        session.execute("CREATE TEMP TABLE lost (name VARCHAR, step INTEGER)")
        for row in lost:
            session.execute("INSERT INTO lost VALUES (?, ?)", row)
        for what, question in checks:
            with tables.blamed(stage, *inputs.values()):
                ((count,),) = session.execute(question).fetchall()
            if count:
                yield f"{count:,} {what}"


def _some(steps: set[int]) -> str:
    first = sorted(steps)[:3]
    return ", ".join(map(str, first)) + ", ..." * (len(steps) > len(first))


def require(stage: Path, written: Collection[str], inputs: Mapping[str, Path], manifest: Mapping) -> None:
    """Raises StageError where `inconsistencies` finds one: the stage is then not complete."""
    if found := list(inconsistencies(stage, written, inputs, manifest)):
        way = ("Run the same command again: missing steps are made again." if recovery.damaged_rows(stage, "hash") else
               f"Nothing that the stage keeps makes them again: delete {stage}, then run the same command again; the "
               "stage then restarts at its beginning.")
        raise StageError(f"the rows of {stage} do not belong together: {'; '.join(found)}. The stage is not complete. "
                         f"{way}")
