"""Follows the step files that the children of a training stage write, and completes the stage."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from ouroboros.pipeline.job import segments, syncs
from ouroboros.pipeline.job.context import TOTAL, Context, environment, run_stage
from ouroboros.pipeline.job.metrics import rollout_metrics, score_metrics, step_metrics
from ouroboros.pipeline.job.no_signal import ASK, FAILED, Signals
from ouroboros.pipeline.job.progress import FILE_ONLY, Progress, rollout_words, score_words, start_words
from ouroboros.pipeline.job.schedule import first_explored, rft_schedule
from ouroboros.pipeline.job.shares import answering_environment, cores
from ouroboros.pipeline.job.tracking import open_tracker, sampled_rollouts
from ouroboros.pipeline.settings.trainer import is_driven
from ouroboros.pipeline.store import checkpoints, files, records, recovery, tables, versions
from ouroboros.stages.explorer.children import Child, leave, supervise, trainer_child

# age of a directory's last change from which on a listing is complete: a later change has another time, even where the
# file system counts seconds
SETTLED_NANOSECONDS = 5 * 10**9


class Follower:
    """Reports every new row of `steps` and every new evaluation once, to the console and the monitor.

    Opened by the first `poll`, because the children must be started before this process has threads.
    """

    table, record, unit = "steps", records.Step, "steps"

    def __init__(self, context: Context):
        self.context = context
        reached = max(tables.steps_present(context.directory, self.table), default=0)
        self.next = self._rewind() + 1
        context.until = segments.choose(context.directory, context.config)
        (context.directory / TOTAL).unlink(missing_ok=True)
        self.signals = Signals(context.config, context.run)
        self.warned = False  # about failed rows, once per process
        kept = tables.steps_present(context.directory, self.table)  # not all of them, where some are lost
        earlier = [*tables.read_steps(context.directory, self.table, [step for step in kept if step < self.next])]
        context.earlier_seconds = sum(self._seconds(step) for step in earlier if step.stage == context.id)
        if taken := {step.stage: step.step for step in earlier if step.stage != context.id}:
            context.made["taken"] = taken  # maker -> its last step
        if reached:
            context.log.info("%s", self._resumed(reached))
        if self.record is records.Step:  # warnings about earlier steps were already given before the resume
            for step in earlier:
                self.signals.after(step)
        self.evaluated = set(tables.steps_present(context.directory, "scores"))
        self.listed = 0  # modification time of scores/ when it was last listed
        self.shown = max(tables.steps_present(context.directory, "experience"), default=0)  # to the monitor
        self.scores: list[records.Score] = []  # of the last evaluation
        self.stack = ExitStack()
        self.tracker = self.progress = None
        self._earlier = ((self._metrics(step), step.step) for step in earlier)

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *error) -> None:
        self.stack.__exit__(*error)

    def poll(self) -> None:
        """Reports the steps that appeared since the last call."""
        if self.tracker is None:
            self.tracker = self.stack.enter_context(open_tracker(self.context))
            scores = ((score_metrics(tables.read_scores(self.context.directory, step)), step)
                      for step in sorted(self.evaluated))
            self.tracker.log_earlier(chain(scores, self._earlier))
        if self.progress is None and (self.context.directory / TOTAL).exists():
            total = files.read_json(self.context.directory / TOTAL)["total_steps"]
            progress = Progress(self.context.log, total, self.unit, self.context.name, done=self.next - 1)
            self.progress = self.stack.enter_context(progress)
        for step in self._new_evaluations():
            self._evaluation(step)
        while self.progress is not None and self._file(self.next).exists():
            self._report(self._read(self.next))
            self.next += 1

    def _rewind(self) -> int:
        """Cleans up after an interrupted earlier run; returns the last step that is kept."""
        config = self.context.config
        return recovery.rewind(self.context.directory, self._warn, config.verify, partial(first_explored, config),
                               self._version_of)

    def _version_of(self, explored: int) -> int | None:
        """The weights version that an explorer step begins with; None where it depends on time, or there is none."""
        config, total = self.context.config, self.context.directory / TOTAL
        if not (self.context.directory / "experience").exists() or is_driven(config) or not total.exists():
            return None
        schedule = replace(rft_schedule(config, 1), total_steps=files.read_json(total)["total_steps"])
        return schedule.weights_version(explored) if explored <= schedule.explorer_steps else None

    def _warn(self, problem: str) -> None:
        self.context.log.warning("warning: %s", problem)

    def _resumed(self, reached: int) -> str:
        """The step at which an interrupted stage that reached `reached` resumes, and why."""
        last, config = self.next - 1, self.context.config
        if last == reached:
            return f"resumes at step {self.next}: all steps up to {last} are kept"
        found = f"the last checkpoint is of step {last}" if last else "there is no checkpoint yet"
        return (f"{'resumes' if last else 'restarts'} at step {self.next} (it had reached step {reached}): "
                f"{found}, trainer.save_interval={config.trainer.save_interval}")

    def _metrics(self, step: records.Step) -> dict[str, float]:
        return step_metrics(step)

    def _report(self, step: records.Step) -> None:
        self.progress.step(step, self.scores)
        if words := start_words(step):
            self.context.log.info("start: %s", words)
        self._track(step)
        if line := self.signals.after(step):
            self.context.log.warning("warning: %s", line)
        if step.failed_rows and not self.warned:
            self.warned = True
            self.context.log.warning("warning: %d rows of step %d failed and are not trained on. %s", step.failed_rows,
                                     step.step, ASK.format(FAILED).format(run=self.context.run))

    def _track(self, step) -> None:
        """Tells the monitor of a step."""
        self.tracker.log(self._metrics(step), step.step)
        interval = self.context.config.monitor.rollouts_interval
        while interval and (file := tables.step_file(self.context.directory, "experience", shown := (
                self.shown // interval + 1) * interval)).exists():
            self.tracker.log_rollouts(partial(sampled_rollouts, file, shown), shown)
            self.shown = shown

    def _seconds(self, step: records.Step) -> float:
        return step.seconds

    def _new_evaluations(self) -> list[int]:
        """Returns the evaluations to report. Their directory is listed only after it changed: it grows with the run."""
        scores = self.context.directory / "scores"
        changed = scores.stat().st_mtime_ns if scores.exists() else 0
        if changed == self.listed:
            return []
        self.listed = changed if time.time_ns() - changed > SETTLED_NANOSECONDS else 0
        return sorted({*tables.steps_present(self.context.directory, "scores")} - self.evaluated)

    def _evaluation(self, step: int) -> None:
        scores = tables.read_scores(self.context.directory, step)
        self.context.log.info("evaluated: %s", score_words(scores), extra=FILE_ONLY)
        self.tracker.log_scores(scores, step)
        self.evaluated.add(step)
        if self.progress is not None:
            self.scores = scores

    def _read(self, step: int):
        return self.record(**tables.read(self._file(step), self.record).to_pylist()[0])

    def _file(self, step: int) -> Path:
        return tables.step_file(self.context.directory, self.table, step)


class RolloutFollower(Follower):
    """Follows explorer steps, for a stage that has only an explorer."""

    table, record, unit = "rollouts", records.Rollout, "explorer steps"

    def _rewind(self) -> int:
        return recovery.rewind_explorer(self.context.directory, self._warn, self.context.config.verify)

    def _metrics(self, rollout: records.Rollout) -> dict[str, float]:
        return rollout_metrics(rollout)

    def _report(self, rollout: records.Rollout) -> None:
        self.progress.advance(1, rollout_words(rollout))
        self._track(rollout)

    def _seconds(self, rollout: records.Rollout) -> float:
        return rollout.rollout_seconds + rollout.other_seconds


def follow_rollouts(name: str, module: str, context: Context) -> None:
    """The work of a stage without a trainer: one child writes the tables of explorer steps, and is followed.

    name, module: of the child.
    """
    surroundings = environment(context.config.explorer.env_vars) | answering_environment(context.config)
    with RolloutFollower(context) as follower:
        supervise(context, [Child(name, module, cores(), environment=surroundings)], follower.poll)
    context.made["explorer_steps"] = len(tables.steps_present(context.directory, RolloutFollower.table))


def run_followed(work: Callable[[Context], None], doc: str) -> None:
    """`run_stage` of a stage whose children are followed; ends without taking the monitor's library apart: 0.9 s."""
    run_stage(work, doc)
    leave(waits=True)


def train_alone(context: Context) -> None:
    """The work of a stage that has a trainer and no explorer."""
    trainer = trainer_child(context.config, cores())
    with Follower(context) as follower:
        supervise(context, [trainer], follower.poll)
    finish_training(context)
    rejected = context.directory / tables.LOCATIONS["rejected"]
    if rejected.exists():
        context.made["rejected"] = len(found := tables.read(rejected, records.Rejected))
        context.log.info("%d records rejected (ouro sql: table rejected); the first: %s", len(found),
                         found["reason"][0].as_py())


def _first_needed(config, total: int) -> int:
    """The oldest weights version with which an explorer step of a longer stage may begin."""
    if not config.kind.is_online or is_driven(config):
        return total + 1
    schedule = replace(rft_schedule(config, 1), total_steps=total)
    return schedule.weights_version(schedule.explorer_steps + 1) if schedule.extendable else total + 1


def finish_training(context: Context) -> None:
    """Exports the last checkpoint's model for later stages and removes the children's working files."""
    if context.goes_on:
        return
    stage = context.directory
    step = checkpoints.complete_checkpoints(stage)[-1]
    if context.earlier_seconds:  # by hash, where a resume compared sizes
        recovery.lose_damaged(stage, context.config.verify, lambda words: context.log.warning("warning: %s", words))
    last = checkpoints.checkpoint_directory(stage, step)
    for made in ("model", "adapter"):
        if (last / made).exists():
            checkpoints.link_tree(last / made, stage / made)
    versions.forget_before(stage, _first_needed(context.config, step), context.config.synchronizer.keep, based=False)
    syncs.forget(stage)
    checkpoints.remove_damaged(stage)
    checkpoints.keep_newest(stage, context.config.trainer.max_checkpoints_to_keep)  # a trainer may have died before it
    context.made |= {"steps": step, "weights_hash": checkpoints.read_manifest(stage, step)["weights_hash"]}
