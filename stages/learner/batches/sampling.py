"""The sample strategy of a stage: selects the rollouts to train on and the demonstrations to mix in."""

import pyarrow as pa
import pyarrow.compute as pc

from ouroboros.operators.algorithm import Algorithm
from ouroboros.operators.sampling import oldest_version
from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.job.tasksets import read_buffer
from ouroboros.pipeline.settings.data import EXPERTS
from ouroboros.pipeline.store.checkpoints import model_directory
from ouroboros.pipeline.store.errors import DataError, StageError
from ouroboros.stages.learner.batches.demonstrations import demonstration_rows
from ouroboros.stages.learner.engine.batch import Row


class Sampling:
    """Applies an algorithm's selection of rows (Algorithm.select), with the demonstrations that it may mix in."""

    def __init__(self, context: Context, own: Algorithm):
        self.algorithm, self.name, self.bound = own, own.strategy, own.query.keywords
        self.rows = expert_rows(context, self.bound["sft_dataset_name"]) if self.name == "mix" else []

    def oldest_version(self, step: int) -> float:
        """The oldest weights version whose rollouts `step` may train on."""
        return oldest_version(step, **self.bound) if self.name == "staleness_control" else 0

    def select(self, step: int, table: pa.Table) -> tuple[pa.Table, list[Row]]:
        """The table without the rollouts that `step` does not train on, and the demonstrations to mix in.

        table: rows of a cut, with is_candidate. Raises StageError when the strategy selects no rollout.
        """
        groups = table.group_by("group_id").aggregate([("weights_version", "min")])  # of its oldest row
        versions = dict(zip(*(groups[name].to_pylist() for name in ("group_id", "weights_version_min")), strict=True))
        own = table.filter(table["is_candidate"])
        aged = pa.array([versions[group] for group in own["group_id"].to_pylist()], own["weights_version"].type)
        candidates = own.drop_columns(["weights_version"]).append_column("weights_version", aged)
        chosen, experts = self.algorithm.select(step, candidates, len(self.rows))
        if not chosen:
            oldest = step - 1 - min(table["weights_version"].to_pylist())
            raise StageError(f"trainer step {step} has no row: algorithm.sample_strategy={self.name} left out all "
                             f"{len(table)}, which are up to {oldest} trainer steps old. Raise max_staleness.")
        selected = pc.is_in(table["experience_id"], value_set=pa.array(chosen, pa.string()))
        kept = table.filter(pc.or_(pc.invert(table["is_candidate"]), selected))
        return kept, [self.rows[place] for place in experts]


# columns that every row needs; losses do not read these of demonstrations (operators/losses/mixture.py)
UNREAD = dict.fromkeys(("advantages", "old_logprobs", "rollout_logprobs", "ref_logprobs"), 0.0)


def expert_rows(context: Context, name: str) -> list[Row]:
    """The rows of the auxiliary buffer `name`, in file order; id: task_id/row of `tasks`, then the
    number of a later row of the same one.

    Raises DataError when it has none, or none within the limits.
    """
    source, curated = context.config.buffer.trainer_input.auxiliary_buffers[name], context.inputs["tasks"]
    tasks = read_buffer(curated, name, source.path, "sft")
    if not tasks:
        raise DataError(f"{curated}/tasks.parquet has no demonstrations of {EXPERTS}.{name} (split sft). Set "
                        f"{EXPERTS}.{name}.path to files of them, or, without a path, give the task files a column "
                        "data_processor.task_pipeline.format.solution_key.")
    rows, _ = demonstration_rows(context, model_directory(context.inputs["model"]), tasks, source, name)
    context.log.info("%d tasks of %s, %d demonstrations within the token limits", len(tasks), name, len(rows))
    return [Row(f"{task.task_id}/{task.row}{row.id.removeprefix(task.task_id)}", row.tokens, row.prompt_length,
                row.mask, UNREAD | {"is_expert": True}, pictures=row.pictures)
            for task, row in rows]
