"""Evaluation on the way: how good the weights of an rft stage are, asked of its explorer while it is at work.

Every evaluation is two files of the stage, `samples/step=…` and `scores/step=…`, under the weights version that they
are about. Requests carry their own seeds, so what is rolled out, and trained, is the same without it.
"""

import time

from pipeline.job.context import Context
from pipeline.job.schedule import Schedule
from pipeline.store import tables
from workflows.engines.engine import Engine
from workflows.evaluation import Subject, evaluate, read_sets
from workflows.rewards import Rewards


class InterimEvaluation:
    """The evaluation sets of a stage, opened once (so that an empty one is named at the start), and when to ask them.

    With `explorer.eval_interval` null, never; nor by an explorer alone, whose weights stay as they are.
    """

    def __init__(self, context: Context, schedule: Schedule, engine: Engine, tokenizer, rewards: Rewards):
        self.context, self.schedule, self.engine, self.tokenizer = context, schedule, engine, tokenizer
        alone = context.config.mode == "explore"
        self.interval = None if alone else context.config.explorer.eval_interval
        self.sets = read_sets(context, tokenizer, rewards) if self.interval else []

    def before(self, explorer_step: int) -> float:
        """Evaluates the weights that the engine holds for this explorer step, if that is due; returns the seconds.

        One that an earlier life of the stage completed is not repeated.
        """
        if not self.interval or not self.schedule.evaluates(explorer_step, self.interval):
            return 0.0
        version = self.schedule.weights_version(explorer_step)
        if tables.step_file(self.context.directory, "scores", version).exists():
            return 0.0
        begin = time.perf_counter()
        evaluate(self.context, self.engine, self.tokenizer, self.sets, Subject(self.context.id, version))
        return time.perf_counter() - begin
