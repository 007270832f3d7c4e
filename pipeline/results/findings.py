"""The report's data as plain rows from a run's tables: curves, times, data, agreement."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ouroboros.pipeline.job.progress import SAMPLED, rate
from ouroboros.pipeline.results.query import Answer, ask
from ouroboros.pipeline.settings.kinds import Kind
from ouroboros.pipeline.store import tables

OF_STAGE = f"{tables.STAGE_NAME} = regexp_replace(?, '-[0-9a-f]+$', '')"
BUCKETS = 5  # rows of the agreement table
MOST_ROWS = 12  # rows of an answer shown in the report

COUNTED = ("raw", "tasks", "rejected", "experience", "samples")  # tables of rows that a stage made
EXPLORER_PARTS = {"rollout": "rollout_seconds", "sync": "sync_seconds", "other": "explore_other_seconds",
                  "evaluation": "evaluate_seconds", "waiting": "explore_wait_seconds"}
TRAINER_PARTS = {"training": "train_seconds", "publishing": "publish_seconds", "other": "train_other_seconds",
                 "waiting": "train_wait_seconds"}


def records(session, question: str, values: Sequence = ()) -> list[dict]:
    """Returns the rows of an internal query as dicts."""
    done = session.execute(question, list(values))
    names = [column[0] for column in done.description]
    return [dict(zip(names, row, strict=True)) for row in done.fetchall()]


def step_columns(session, stage: str) -> dict[str, np.ndarray]:
    """Returns the columns of a stage's steps in order, as floats; null is NaN. preferred, margin: of pairs alone."""
    columns = ("* EXCLUDE (run, stage, statistics, packing, start), statistics['accuracy'] AS preferred, "  # of pairs
               "statistics['chosen_reward'] - statistics['rejected_reward'] AS margin")
    done = session.execute(f"SELECT {columns} FROM steps WHERE {OF_STAGE} ORDER BY step", [stage])
    table = np.array(done.fetchall(), dtype=float).reshape(-1, len(done.description))
    return {column[0]: table[:, i] for i, column in enumerate(done.description)}


def times(columns: dict[str, np.ndarray]) -> dict:
    """Returns totals of a training stage: seconds per part of explorer and trainer, tokens per second of each."""
    explorer = {part: float(np.nansum(columns[c])) for part, c in EXPLORER_PARTS.items()}
    trainer = {part: float(np.nansum(columns[c])) for part, c in TRAINER_PARTS.items()}
    rollout, train = np.nansum(columns["rollout_tokens"]), np.nansum(columns["trained_tokens"])
    return {
        "explorer": {part: seconds for part, seconds in explorer.items() if seconds},
        "trainer": {part: seconds for part, seconds in trainer.items() if seconds},
        "steps": len(columns["step"]),
        "wall": float(np.nansum(columns["seconds"])),
        "rollout_tokens": int(rollout),
        "trained_tokens": int(train),
        "rollout_rate": rate(rollout, explorer["rollout"]),
        "train_rate": rate(train, trainer["training"]),
    }


def evaluations(session, stage: str, start: str) -> dict[str, dict[str, list]]:
    """Returns sampled accuracy (or reward) by trainer step: set -> columns metric, step, value, low, high.

    stage, start: directory names of the stage and of its initial model, whose accuracy is at step 0. Sets on which
    fewer than two of the stage's own weights were evaluated are omitted.
    """
    rows = records(session, f"""
        SELECT DISTINCT ON (taskset, trainer_step) taskset, if(model = $1, step, 0) AS trainer_step,
            metric, value, low, high
        FROM scores WHERE metric IN {SAMPLED} AND model IN ($1, $2)
        ORDER BY taskset, trainer_step, stage""",
        (stage, start))
    curves: dict[str, dict[str, list]] = {}
    for row in rows:
        columns = curves.setdefault(row["taskset"], {"metric": [], "step": [], "value": [], "low": [], "high": []})
        for column, values in columns.items():
            values.append(row["trainer_step" if column == "step" else column])
    return {taskset: columns for taskset, columns in curves.items() if sum(s > 0 for s in columns["step"]) > 1}


def row_counts(session, kinds: dict[Path, Kind]) -> dict[str, int]:
    """Counts the rows of each stage, of one that makes none those that it trained on: name of its directory -> rows.

    kinds: directory -> kind.
    """
    counts: dict[str, int] = {}
    for directory, kind in kinds.items():
        counted = [(table, "count(*)") for table in COUNTED if table in kind.writes]
        trained = [("steps", "sum(trained_rows)::BIGINT")] if kind.trains and not counted else []
        for table, rows in counted or trained:
            found = session.execute(f"SELECT {rows} FROM {table} WHERE {OF_STAGE}", [directory.name]).fetchone()[0]
            counts[directory.name] = counts.get(directory.name, 0) + (found or 0)
    return counts


def curation(session) -> dict:
    """Returns rows read, kept by set and split, and dropped by operator with the most frequent reasons.

    session: over one tasks stage and its curate stage: a run may have several, which read the same rows.
    """
    dropped = records(session, """
        WITH reasons AS (
            SELECT operator, reason, count(*) AS rows, row_number() OVER (
                PARTITION BY operator ORDER BY count(*) DESC, reason) AS place
            FROM rejected GROUP BY operator, reason)
        SELECT operator, sum(rows)::BIGINT AS rows, count(*) AS reasons,
               list(reason ORDER BY place) FILTER (place <= 3) AS commonest
        FROM reasons GROUP BY operator ORDER BY rows DESC, operator""")
    kept = records(session, "SELECT taskset, split, count(*) AS rows FROM tasks GROUP BY ALL "
                            "ORDER BY taskset NULLS FIRST, rows DESC")
    return {"dropped": dropped, "kept": kept, "read": session.execute("SELECT count(*) FROM raw").fetchall()[0][0],
            "kept_rows": sum(r["rows"] for r in kept), "dropped_rows": sum(r["rows"] for r in dropped)}


def agreement(session) -> list[dict]:
    """Returns mismatch, staleness and failures of each rft stage over equal ranges of its steps."""
    return records(session, f"""
        WITH named AS (SELECT * REPLACE ({tables.STAGE_NAME} AS stage) FROM steps),
        bounds AS (SELECT stage, count(*) AS n, min(step) AS low FROM named GROUP BY stage),
        cut AS (SELECT s.*, (s.step - low) * least({BUCKETS}, n) // n AS bucket FROM named s JOIN bounds USING (stage)
                WHERE staleness_max IS NOT NULL)
        SELECT cut.stage, min(cut.step) AS low, max(cut.step) AS high,
               avg(mismatch_mean) AS mean, max(mismatch_max) AS worst, max(probe) AS probe,
               max(staleness_max) AS staleness, avg(clip_fraction) AS clipped, avg(zero_variance_groups) AS flat,
               sum(cut.resampled_groups)::BIGINT AS replaced, sum(cut.missing_groups)::BIGINT AS missing,
               sum(cut.failed_rows)::BIGINT AS failed
        FROM cut LEFT JOIN (
            SELECT {tables.STAGE_NAME} AS stage, weights_version, max(probe_max_difference) AS probe FROM rollouts
            GROUP BY ALL
        ) AS proofs ON proofs.stage = cut.stage AND proofs.weights_version = cut.step
        GROUP BY cut.stage, bucket ORDER BY cut.stage, low""")


def origins(session) -> list[dict]:
    """Returns the origin of the rollouts: engine, sampling, commit, and the first and last weights used."""
    return records(session, f"""
        SELECT {tables.STAGE_NAME} AS stage, engine, commit, config_hash, count(*) AS rows,
               temperature, top_p, top_k, max(weights_version) AS last_version,
               arg_max(weights_hash, weights_version) AS last_weights
        FROM experience GROUP BY ALL ORDER BY stage""")


def answers(session) -> list[dict]:
    """Returns the README's queries with their answers, at most MOST_ROWS rows each."""
    found = []
    for title, sql in QUESTIONS.items():
        answer = ask(session, sql)
        found.append({"title": title, "sql": sql, "answer": Answer(answer.columns, answer.rows[:MOST_ROWS]),
                      "more": max(len(answer.rows) - MOST_ROWS, 0)})
    return found


QUESTIONS: dict[str, str] = {
    "How good was each version of the weights, and how long were its answers?": """\
SELECT weights_version // width * width AS versions_from, count(*) FILTER (turn = 0) AS attempts,
       round(avg(reward) FILTER (turn = 0), 3) AS reward, round(avg(accuracy) FILTER (turn = 0), 3) AS solve_rate,
       round(avg(len(response_tokens)), 1) AS response_tokens, count(DISTINCT weights_hash) AS weights
FROM experience, (SELECT least(greatest(max(weights_version) // 5, 1), 50) AS width FROM experience)
WHERE status IN ('ok', 'no_variance') GROUP BY 1 ORDER BY 1""",
    "Which tasks are the hardest to learn?": """\
SELECT any_value(prompt) AS prompt, count(*) AS rollouts, round(avg(reward), 3) AS reward,
       round(avg(accuracy), 3) AS solve_rate
FROM experience WHERE turn = 0 GROUP BY task_id HAVING count(reward) > 0
ORDER BY coalesce(avg(accuracy), avg(reward)), prompt LIMIT 5""",
    "What did curation drop, and why?": """\
SELECT operator, count(*) AS rows, min(reason) AS for_instance
FROM rejected GROUP BY operator ORDER BY rows DESC, operator""",
    "Do rollout engine and trainer agree on the probability of a token?": """\
WITH pairs AS (
    SELECT staleness, list_where(rollout_logprobs, action_mask::BOOL[]) AS rolled, train_logprobs AS trained
    FROM experience JOIN trained USING (run, experience_id))
SELECT staleness, count(*) AS rows,
       avg(list_avg(list_transform(list_zip(rolled, trained), lambda p: abs(p[1] - p[2])))) AS mean_difference
FROM pairs
WHERE len(trained) > 0 GROUP BY staleness ORDER BY staleness""",
    "Where did the time go?": """\
SELECT regexp_replace(stage, '-[0-9a-f]+$', '') AS stage, count(*) AS steps, round(sum(seconds), 1) AS seconds,
       round(sum(rollout_seconds), 1) AS rollout, round(sum(train_seconds), 1) AS training,
       round(sum(sync_seconds), 2) AS sync, round(sum(train_wait_seconds), 1) AS trainer_waits
FROM steps GROUP BY 1 ORDER BY min(seconds)""",
}
