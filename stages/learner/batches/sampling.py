"""The sample strategy of a stage: selects the rollouts to train on and the demonstrations to mix in."""

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from ouroboros.operators.arguments import arguments
from ouroboros.operators.sampling import SAMPLE_STRATEGIES, oldest_version
from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.settings.train_batch import train_batch
from ouroboros.pipeline.store.errors import StageError, pick
from ouroboros.stages.learner.batches.experts import expert_rows
from ouroboros.stages.learner.engine.batch import Row


class Sampling:
    """Applies `algorithm.sample_strategy`, with the demonstrations that it may mix in."""

    def __init__(self, context: Context, session):
        """session: DuckDB, for the views `candidates` and `experts`. Raises ConfigError for unknown names."""
        algorithm, self.session = context.config.algorithm, session
        self.name = algorithm.sample_strategy or "default"
        function = pick(SAMPLE_STRATEGIES, self.name, "algorithm.sample_strategy")
        self.bound = arguments("sample_strategy", self.name, function, algorithm.sample_strategy_args,
                               "algorithm.sample_strategy_args")
        self.query = partial(function, **self.bound)
        # on recorded experience the stage cuts batches of its own size and mixes nothing in (check/batch.py)
        self.batch_size = train_batch(context.config).total if self.name == "mix" else 0
        self.rows = expert_rows(context, self.bound["sft_dataset_name"]) if self.name == "mix" else []
        self.session.register("experts", pa.table({
            "experience_id": pa.array(range(len(self.rows)), pa.int64()).cast(pa.string()),
            "position": pa.array(range(len(self.rows)), pa.int64())}))

    def oldest_version(self, step: int) -> float:
        """The oldest weights version whose rollouts `step` may train on."""
        return oldest_version(step, **self.bound) if self.name == "staleness_control" else 0

    def select(self, step: int, table: pa.Table) -> tuple[pa.Table, list[Row]]:
        """The table without the rollouts that `step` does not train on, and the demonstrations to mix in.

        table: rows of a cut, with is_candidate. Raises StageError when the strategy selects no rollout.
        """
        self.session.register("usable", table.select(
            ["experience_id", "group_id", "position", "weights_version", "is_candidate"]))
        self.session.register("candidates", self.session.sql(
            """SELECT experience_id, position, min(weights_version) OVER (PARTITION BY group_id) AS weights_version
               FROM usable QUALIFY is_candidate""").to_arrow_table())  # a group is as old as its oldest row
        found = self.session.sql(self.query(step, self.batch_size)).fetchall()
        chosen = [id_ for id_, is_expert, _ in found if not is_expert]
        if not chosen:
            oldest = step - 1 - min(table["weights_version"].to_pylist())
            raise StageError(f"trainer step {step} has no row: algorithm.sample_strategy={self.name} left out all "
                             f"{len(table)}, which are up to {oldest} trainer steps old. Raise max_staleness.")
        selected = pc.is_in(table["experience_id"], value_set=pa.array(chosen, pa.string()))
        kept = table.filter(pc.or_(pc.invert(table["is_candidate"]), selected))
        return kept, [self.rows[int(position)] for position, is_expert, _ in found if is_expert]
