"""Demonstrations of an auxiliary buffer as off-policy rows, for the sample strategy mix."""

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.job.tasksets import read_buffer
from ouroboros.pipeline.settings.data import EXPERTS
from ouroboros.pipeline.store.checkpoints import model_directory
from ouroboros.pipeline.store.errors import DataError
from ouroboros.stages.learner.batches.demonstrations import demonstration_rows
from ouroboros.stages.learner.engine.batch import Row

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
                row.mask, UNREAD | {"is_expert": True})
            for task, row in rows]
