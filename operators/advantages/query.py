"""Reads an advantage function's batch: required columns, finite numbers, SQL over the view `batch`."""

from __future__ import annotations

from ouroboros.pipeline.store import sessions
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.lazy import np, pa, pc

TRAINER, EXPLORER = "the trainer of this stage", "the explorer of the stage that made the rollouts"
# column -> its source; all other columns come from the explorer
MADE_BY = {
    "turn": f"{EXPLORER}, with a workflow of several turns",
    "state_hash": f"{EXPLORER}, with a workflow that tells states apart",
    "step_reward": f"{EXPLORER}, with a workflow that rewards single steps",
    "baseline_reward": f"{EXPLORER}, from a greedy rollout of each task (algorithm.greedy_baseline)",
    "token_rewards": f"{EXPLORER}, with a reward function that rewards single tokens",
    "values": f"the critic of {TRAINER}",
    "teacher_logprobs": f"{TRAINER}, with a teacher model",
    **dict.fromkeys(("old_logprobs", "entropies", "mean_scores", "is_candidate", "use_count"),
                    f"{TRAINER}, before it asks for advantages"),
}


def require(batch: pa.Table, *columns: str) -> None:
    """Raises DataError for an absent column or a null value, naming the stage that writes the column."""
    for name in columns:
        maker = MADE_BY.get(name, EXPLORER)
        if name not in batch.column_names:
            raise DataError(f"the advantage needs the column '{name}', which this batch does not have; it is made by "
                            f"{maker}. Choose another algorithm.advantage_fn, or settings under which it is made.")
        nulls = batch[name].null_count
        if nulls:
            raise DataError(f"the advantage needs the column '{name}', which is null in {nulls} of {len(batch)} rows; "
                            f"it is made by {maker}. Run that stage with settings under which it is made.")


def require_finite(batch: pa.Table, *columns: str) -> None:
    """`require`, and DataError for NaN or infinity, which would spread over a group."""
    require(batch, *columns)
    for name in columns:
        refuse_infinite(batch, name)


def refuse_infinite(batch: pa.Table, name: str) -> None:
    """Raises DataError for NaN or infinity in a numeric column; null is allowed."""
    values = pc.fill_null(batch[name], 0).to_numpy()
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise DataError(f"column '{name}' is {values[wrong[0]]} in row {batch['experience_id'][wrong[0]]}, and not a "
                        f"finite number in {len(wrong)} of {len(batch)} rows. A response that cannot be judged must "
                        "have a status that is not ok, never a NaN.")


def ask(batch: pa.Table, query: str, *columns: str) -> pa.Table:
    """The result of DuckDB for `query` over the view `batch`, with experience_id and the named columns."""
    with sessions.one().cursor() as session:  # batches are small, and the trainer's cores are busy
        session.register("batch", batch.select(["experience_id", *columns]))
        return session.sql(query).to_arrow_table()
