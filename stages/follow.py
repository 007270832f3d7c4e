"""The parent's view of a training stage: follows the step files its children write, and closes the stage."""

from contextlib import ExitStack
from pathlib import Path

from pipeline import checkpoints, files, records, tables
from pipeline.process import Context
from pipeline.progress import FILE_ONLY, Progress, score_words
from pipeline.tracking import open_tracker

TOTAL = "total.json"  # written by the trainer when it knows how many steps the stage has


class Follower:
    """Reads every new row of `steps` and every new evaluation once, shows it and hands it to the monitor.

    Opened by the first `poll`, because the children must be started before this process has threads.
    """

    def __init__(self, context: Context):
        self.context = context
        self.next = checkpoints.rewind(context.directory) + 1
        (context.directory / TOTAL).unlink(missing_ok=True)
        if self.next > 1:
            context.log.info("goes on after step %d", self.next - 1)
            kept = (tables.step_file(context.directory, "steps", step) for step in range(1, self.next))
            context.earlier_seconds = sum(tables.read(path, records.Step)["seconds"][0].as_py() for path in kept)
        self.evaluated = set(tables.steps_present(context.directory, "scores"))
        self.stack = ExitStack()
        self.tracker = self.progress = None

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *error) -> None:
        self.stack.__exit__(*error)

    def poll(self) -> None:
        """Reports the steps that appeared since the last call."""
        if self.tracker is None:
            self.tracker = self.stack.enter_context(open_tracker(self.context))
        if self.progress is None and (self.context.directory / TOTAL).exists():
            total = files.read_json(self.context.directory / TOTAL)["total_steps"]
            progress = Progress(self.context.log, total, "steps", self.context.name, done=self.next - 1)
            self.progress = self.stack.enter_context(progress)
        for step in sorted({*tables.steps_present(self.context.directory, "scores")} - self.evaluated):
            self._evaluation(step)
        while self.progress is not None and (path := self._file()).exists():
            step = records.Step(**tables.read(path, records.Step).to_pylist()[0])
            self.progress.step(step)
            self.tracker.log_step(step)
            self.next += 1

    def _evaluation(self, step: int) -> None:
        scores = tables.read_scores(self.context.directory, step)
        self.context.log.info("evaluated: %s", score_words(scores), extra=FILE_ONLY)
        self.tracker.log_scores(scores, step)
        self.evaluated.add(step)
        if self.progress is not None:
            self.progress.evaluated = scores

    def _file(self) -> Path:
        return tables.step_file(self.context.directory, "steps", self.next)


def finish_training(context: Context) -> None:
    """Gives the last checkpoint's model to the stages that follow, and tidies what only the children needed."""
    stage = context.directory
    step = checkpoints.complete_checkpoints(stage)[-1]
    last = checkpoints.checkpoint_directory(stage, step)
    checkpoints.link_tree(last / "model", stage / "model")
    checkpoints.forget_versions_before(stage, step + 1)
    context.made |= {"steps": step, "weights_hash": files.read_json(last / files.MANIFEST)["weights_hash"]}
