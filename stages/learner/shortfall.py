"""Explains why a train batch has no row: counts what happened to the candidates."""

ASK = "See ouro sql \"select status, reason, count(*) from experience group by all\"."


def shortfall(session, table: str, place: str) -> str:
    """The error text of a trainer step. table, place: SQL for the rows and for those of the batch."""
    found = session.sql(f"SELECT status, count(*), count(DISTINCT group_id), max(resample_round) FROM {table} "
                        f"WHERE {place} GROUP BY status ORDER BY status").fetchall()
    total = sum(rows for _, rows, _, _ in found)
    counts = ", ".join(f"{rows} are {status}" for status, rows, _, _ in found)
    for status, _, groups, rounds in found:
        if status == "no_variance":
            return (f"of {total} needed {counts}: {groups} groups are missing, even after {rounds} round(s) of fresh "
                    "tasks, because all responses to a task were equally good. Give tasks that the model solves now "
                    "and then, more algorithm.repeat_times, or algorithm.resample_metric=reward where the reward tells "
                    f"wrong answers apart; algorithm.max_resample_rounds=0 leaves such groups in the batch. {ASK}")
    return f"all {total} failed: {counts}. {ASK}"
