"""Evaluates a model on held-out tasks: greedy accuracy, sampled accuracy, pass@k, with 95% intervals.

Reads tasks.parquet and a model; writes samples/ (every response) and scores/, one file each, numbered by the trainer
step that produced the model. The evaluator is stages/score.py; this process starts it and follows its scores.
"""

from contextlib import ExitStack

from ouroboros.pipeline.job.activity import Doing
from ouroboros.pipeline.job.context import Context, environment, run_stage
from ouroboros.pipeline.job.metrics import score_metrics
from ouroboros.pipeline.job.no_signal import base_accuracies
from ouroboros.pipeline.job.progress import Progress, leak_words
from ouroboros.pipeline.job.shares import answering_environment, cores
from ouroboros.pipeline.job.tracking import open_tracker
from ouroboros.pipeline.job.watchdog import activity_file
from ouroboros.pipeline.store import checkpoints, records, tables
from ouroboros.stages.explorer.children import Child, supervise

EVALUATOR = "evaluator"


def work(context: Context) -> None:
    checkpoints.begin_anew(context.directory)  # an interrupted launch may have left scores
    run_evaluator(context)
    for row in tables.read_scores(context.directory, checkpoints.trained_steps(context.inputs["model"])):
        context.made[f"{row.taskset}/{row.metric}"] = [round(row.value, 4), round(row.low, 4), round(row.high, 4)]


def run_evaluator(context: Context) -> None:
    """Scores the models of a stage in a child process, under supervision."""
    surroundings = environment(context.config.explorer.env_vars) | answering_environment(context.config)
    with Evaluations(context) as follower:
        child = Child(EVALUATOR, "ouroboros.stages.score", cores(), environment=surroundings)
        supervise(context, [child], follower.poll)


class Evaluations(ExitStack):
    """Reports the evaluator's passes over the sets, and every new evaluation, to the console and the monitor.

    Opened by the first `poll`, because the child must be started before this process has threads.
    """

    def __init__(self, context: Context):
        super().__init__()
        self.context = context
        self.earlier = tables.steps_present(context.directory, "scores")
        self.evaluated = set(self.earlier)
        self.tracker = self.progress = None

    def poll(self) -> None:
        if self.tracker is None:
            self.tracker = self.enter_context(open_tracker(self.context))
            self.tracker.log_earlier((score_metrics(self._read(step)), step) for step in self.earlier)
        self._advance()
        for step in sorted({*tables.steps_present(self.context.directory, "scores")} - self.evaluated):
            scores = self._read(step)
            for words in dict.fromkeys(f"{s.taskset}: {leak_words(s)}" for s in scores if leak_words(s)):
                self.context.log.warning("warning: %s; these are not scores of unseen tasks", words)
            for words in base_accuracies(scores):
                self.context.log.warning("warning: %s", words)
            self.tracker.log_scores(scores, step)
            self.evaluated.add(step)

    def _advance(self) -> None:
        """Shows the passes that the evaluator's activity names: `evaluates, 3 of 8`."""
        file = activity_file(self.context.directory, EVALUATOR)
        doing = Doing.read(file) if file.exists() and file.stat().st_size else Doing("starts")
        if not doing.detail:
            return
        passing, total = map(int, doing.detail.split(" of "))
        if self.progress is None:
            self.progress = self.enter_context(Progress(self.context.log, total, "passes", self.context.name))
        if passing - 1 > self.progress.done:
            self.progress.advance(passing - 1 - self.progress.done)

    def _read(self, step: int) -> list[records.Score]:
        return tables.read_scores(self.context.directory, step)


if __name__ == "__main__":
    run_stage(work, __doc__)
