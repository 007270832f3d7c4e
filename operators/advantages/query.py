"""How an advantage function reads its batch: required columns, finite rewards, SQL over the view `batch`."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError

# column -> what makes it
MADE_BY = {
    "turn": "the explorer of the stage rft, with a workflow of several turns",
    "state_hash": "the explorer of the stage rft, with a workflow that gives state_hash",
    "step_reward": "the explorer of the stage rft, with a workflow that gives step_reward",
    "baseline_reward": "the explorer of the stage rft, which scores a greedy rollout of each task",
    "token_rewards": "the trainer of the stage rft, before it asks for advantages",
    "values": "the critic in the trainer of the stage rft",
    "teacher_logprobs": "the trainer of the stage rft, with a teacher model",
    "old_logprobs": "the trainer of the stage rft, before it asks for advantages",
    "entropies": "the trainer of the stage rft, when it recomputes the old log-probs",
    "centred_logprobs": "the trainer of the stage rft, when it recomputes the old log-probs",
}
EXPLORER = "the explorer of the stage rft"


def require(batch: pa.Table, *columns: str) -> None:
    """Raises DataError for a column that is absent, or null in some row, and says which stage makes it."""
    for name in columns:
        maker = MADE_BY.get(name, EXPLORER)
        if name not in batch.column_names:
            raise DataError(f"the advantage needs the column '{name}', which this batch does not have; it is made by "
                            f"{maker}. Choose another algorithm.advantage_fn, or settings under which it is made.")
        nulls = batch[name].null_count
        if nulls:
            raise DataError(f"the advantage needs the column '{name}', which is null in {nulls} of {len(batch)} rows; "
                            f"it is made by {maker}. Run that stage again with settings under which it is made.")


def require_finite(batch: pa.Table, *columns: str) -> None:
    """`require`, and DataError for a NaN or an infinity: it would spread over the whole group, or batch."""
    require(batch, *columns)
    for name in columns:
        array = batch[name].combine_chunks()
        ragged = pa.types.is_list(array.type)
        values = (array.flatten() if ragged else array).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(~np.isfinite(values))
        if len(wrong):
            row = pc.list_parent_indices(array)[wrong[0]].as_py() if ragged else wrong[0]
            raise DataError(f"column '{name}' is {values[wrong[0]]} in row {batch['experience_id'][row]}, and not a "
                            f"finite number in {len(wrong)} places. A response that cannot be judged must have a "
                            "status that is not ok, never a NaN.")


def ask(batch: pa.Table, query: str, *columns: str) -> pa.Table:
    """The answer of DuckDB to `query` over the view `batch`, which has experience_id and the named columns."""
    import duckdb

    with duckdb.connect() as session:
        session.execute("SET threads TO 1")  # batches are small, and the trainer's cores are busy
        session.register("batch", batch.select(["experience_id", *columns]))
        return session.sql(query).to_arrow_table()
