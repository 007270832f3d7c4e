"""Train batches from a fixed data set: demonstrations, pairs or texts."""

from abc import ABC, abstractmethod
from pathlib import Path

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.job.selection import tasks_of_step
from ouroboros.pipeline.job.syncs import Unasked
from ouroboros.pipeline.job.tasksets import read_buffer
from ouroboros.pipeline.settings.data import SHOWN
from ouroboros.pipeline.settings.train_batch import given_batch
from ouroboros.pipeline.store import records
from ouroboros.pipeline.store.errors import DataError
from ouroboros.stages.learner.engine.batch import Batch, Row

OPERATOR = "chat_template"  # name in the table `rejected` of what finds rows that it cannot write

class DataSet(ABC):
    """Batches of train_batch_size (else batch_size) units, each once per epoch; publishes no weights.

    split: of its tasks. what, advice: name of a unit, and what to set without any, in messages. unit: number of
    consecutive rows that are drawn together.
    """

    split: str
    what: str
    advice: str
    unit = 1
    syncs = Unasked()

    def __init__(self, context: Context, model: Path):
        """model: directory with the tokenizer. Raises DataError without tasks, and when a batch is larger than the
        data set, since rows would repeat within it.
        """
        buffer, self.seed = context.config.buffer, context.config.seed
        source, curated = buffer.trainer_input.experience_buffer, context.inputs["tasks"]
        tasks = read_buffer(curated, source.name, source.path, self.split)
        self.rejected: list[records.Rejected] = []
        if not tasks:
            raise DataError(f"{curated}/tasks.parquet has no {self.what} (split {self.split}). Set {SHOWN}.path"
                            f"{self.advice}")
        self.rows = self.tokenized(context, model, tasks)
        self.count = len(self.rows) // self.unit
        context.log.info("%d tasks, %d %s within the token limits", len(tasks), self.count, self.what)
        key, self.batch_size = given_batch(buffer)
        if self.batch_size > self.count:
            raise DataError(f"{key}={self.batch_size}: an optimizer step takes that many {self.what}, each once, and "
                            f"those curated and within the token limits are {self.count}: "
                            f"{self.batch_size - self.count} short. Needed at most {self.count}.")
        self.total_steps = buffer.total_steps or max(buffer.total_epochs * self.count // self.batch_size, 1)

    @abstractmethod
    def tokenized(self, context: Context, model: Path, tasks: list[records.Task]) -> list[Row]:
        """The rows of the tasks that are within the token limits, in order; sets `rejected`, where there are any."""

    def cut(self, step: int) -> Batch:
        """The batch of a step."""
        chosen = tasks_of_step(self.count, self.batch_size, step, self.seed)
        return Batch(step, [row for k in chosen for row in self.rows[self.unit * k : self.unit * (k + 1)]])

    def with_advantages(self, batch: Batch) -> Batch:
        """The batch as it is: its losses use no advantages."""
        return batch


def rejected_rows(context: Context, tasks: list[records.Task], made: list, name: str) -> list[records.Rejected]:
    """The tasks that became a reason instead of rows. Raises DataError where they are more than the share
    buffer.max_rejected_ratio. name: of their buffer."""
    rejected = [records.Rejected(task.row, task.question, task.answer, task.solution, OPERATOR, reason, task.taskset)
                for task, reason in zip(tasks, made, strict=True) if isinstance(reason, str)]
    if not rejected:
        return []
    line = f"{len(rejected)} of {len(tasks)} records cannot be used; the first: {rejected[0].reason}"
    allowed = context.config.buffer.max_rejected_ratio
    if len(rejected) > min(allowed * len(tasks), len(tasks) - 1):  # none is left where all may be lost
        raise DataError(f"'{name}': {line}. Allowed {allowed:.0%} (buffer.max_rejected_ratio). Correct the file, set "
                        "model.chat_template_path to a template that reads all of it, or allow more.")
    context.log.info("%s", line)
    return rejected
