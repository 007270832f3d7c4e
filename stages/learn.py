"""The trainer of a stage, one process per rank: turns batches into weights and checkpoints.

Started by stages/train.py (demonstrations), stages/rft.py (experience as it is generated) and stages/offline.py
(experience of an earlier stage). All share this loop; they differ only in the source of the batches and in the loss
(stages/learner/batches/).
"""

import signal
import time
from pathlib import Path
from typing import Any, NoReturn

import torch

from ouroboros.operators.algorithm import Algorithm
from ouroboros.pipeline.job import slurm
from ouroboros.pipeline.job.activity import UNLIMITED
from ouroboros.pipeline.job.background import Background
from ouroboros.pipeline.job.context import TOTAL, Context
from ouroboros.pipeline.job.ending import OUT_OF_TIME, Stopped
from ouroboros.pipeline.job.load import Watch, process_start
from ouroboros.pipeline.job.opening import opening
from ouroboros.pipeline.settings.combinations import refusal
from ouroboros.pipeline.settings.config import longest_sequence
from ouroboros.pipeline.settings.rates import is_kept
from ouroboros.pipeline.store import checkpoints, files, records, tables
from ouroboros.pipeline.store.errors import ModelError, StageError
from ouroboros.pipeline.store.pictures import has_pictures
from ouroboros.stages import device_sharing, recompute
from ouroboros.stages.explorer.children import RENDEZVOUS, kept, run_child
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.batches.data_set import DataSet
from ouroboros.stages.learner.batches.demonstrations import Demonstrations
from ouroboros.stages.learner.batches.known_text import tokens_of_text
from ouroboros.stages.learner.batches.preferences import Preferences
from ouroboros.stages.learner.batches.recorded import Recorded
from ouroboros.stages.learner.batches.reward_pairs import RewardPairs
from ouroboros.stages.learner.batches.rollouts import Rollouts
from ouroboros.stages.learner.batches.texts import Texts
from ouroboros.stages.learner.critic import Critic
from ouroboros.stages.learner.engine.batch import Batch
from ouroboros.stages.learner.engine.compiled import GRAPHS
from ouroboros.stages.learner.engine.process import Process
from ouroboros.stages.learner.engine.way import Way
from ouroboros.stages.learner.engine_teacher import EngineTeacher
from ouroboros.stages.learner.estimates import Estimates
from ouroboros.stages.learner.objective import Objective
from ouroboros.stages.learner.publishing import Publishing
from ouroboros.stages.learner.record import Seconds, step_record, trained_rows
from ouroboros.stages.learner.reference import References
from ouroboros.stages.learner.saving import Deadline, Saving
from ouroboros.stages.learner.scorer import Scorer
from ouroboros.stages.learner.separation import prove_critic, prove_policy, prove_teacher
from ouroboros.stages.learner.served_teacher import ServedTeacher
from ouroboros.stages.learner.steps import Steps
from ouroboros.stages.learner.teacher import Teacher
from ouroboros.workflows.protocol.hugging_face import import_light

PROBE_TOKENS = 256
POLL_SECONDS = 0.2  # interval of looking for a request to end while the next batch is waited for
DATA_SETS = {"demonstrations": Demonstrations, "texts": Texts, "pairs": Preferences}


class Trainer:
    """One rank of a training stage."""

    def __init__(self, context: Context):
        self.context, config = context, context.config
        self.model = checkpoints.model_directory(context.inputs["model"])
        self.writer = Background()  # writes a step's tables while the next step is computed
        self.reader = Background()  # meanwhile prepares the next batch, if its rollouts exist
        self.ended = False
        self.deadline = Deadline()
        self.measured = 0.0  # when the timings of the last step were taken
        self.start, begin = {"trainer: imports": time.time() - process_start()}, time.perf_counter()
        checkpoint, saved = self._newest_checkpoint()
        self.algorithm = Algorithm.of(config, saved.get("state", saved.get("kl_coef")))  # its name until 2026-11
        self.objective = Objective(config, self.algorithm)
        self.source = self._source()
        self.images = has_pictures(context.inputs.get("tasks"))
        of_agents = any((context.directory / "shown").glob("*"))  # of rows that were made with other settings
        if (self.images or of_agents) and (reason := refusal(
                config, "values" in self.algorithm.estimates, context.inputs, self.images)):
            raise ModelError(reason)
        self.process = Process.start(config.seed, context.directory / RENDEZVOUS,
                                     config.trainer.ulysses_sequence_parallel_size)
        self.load = Watch() if self.process.rank == 0 else None
        data_set = isinstance(self.source, DataSet)
        if data_set and self.source.rejected and self.process.rank == 0:
            tables.write(context.directory / tables.LOCATIONS["rejected"], records.Rejected, self.source.rejected)
        refers = "ref_logprobs" in self.algorithm.estimates
        self.text = tokens_of_text(context, self.model, self.source, 2 * longest_sequence(config.model))
        self.actor = self._proved(saved, refers)
        references = References(context, self.model, self.actor) if refers else None
        if data_set and references:  # scored once: unlike rollouts, the rows are known
            context.activity.now(UNLIMITED)
            references.add(self.source.rows)
        self.estimates = Estimates(self.actor) if data_set else self._estimates(references)
        self.critic = self.estimates.critic
        self.saving = Saving(context, self.model, self.process, self.actor, self.critic, self.algorithm,
                             self.deadline.saved)
        self.syncs = self.source.syncs
        self.publishing = Publishing(context, self.actor, self.syncs)
        self.steps = Steps(config, self.objective, self.actor, self.estimates, self.source.total_steps, context.log)
        self.last = min(self.source.total_steps, context.until or self.source.total_steps)
        self.step_done = self._resume(checkpoint, saved)
        self.start["trainer: weights and their proof"] = time.perf_counter() - begin

    def _source(self) -> DataSet | Rollouts:
        """The train batches."""
        algorithm = self.context.config.algorithm
        if not algorithm.on_rollouts:
            data_set = RewardPairs if algorithm.scores_responses else DATA_SETS[algorithm.data]
            return data_set(self.context, self.model)
        made = Recorded if "experience" in self.context.inputs else Rollouts
        return made(self.context, self.algorithm, self._check)

    def _proved(self, saved: dict[str, Any], refers: bool) -> Actor:
        """The policy or reward model, its rows proved. refers: the initial policy is asked for its log-probs."""
        config, process, former = self.context.config, self.process, saved.get("packing")
        for resolve in (recompute.resolve, device_sharing.resolve):
            self._log(resolve(config, self.model, self.images))
        config.trainer.overlap = not _any(process, not config.trainer.overlap)
        waits = bool(saved) or ("teacher" in self.context.inputs and not config.model.teacher_url)
        if not _any(process, waits or not device_sharing.opens_early(config, self.model, self.images)):
            self._admit()  # not when it resumes: an engine may sleep, and measure what that frees, before `run`
        if isinstance(self.source, RewardPairs):
            actor = Scorer(self.model, config, process, self.source.padding)
            prove_critic(actor, config, self.text, former)
        else:
            temperature = 1.0 if isinstance(self.source, DataSet) else config.model.temperature
            actor = Actor(self.model, config, process, temperature, refers)
            prove_policy(actor, config, self.text, former)
            if self.images:
                actor.expect_images()
        self._keep_way(actor.way, former)
        return actor

    def _estimates(self, references: References | None) -> Estimates:
        """The model estimates of rollouts."""
        context, config = self.context, self.context.config
        critic, asked = None, self.algorithm.estimates
        if "values" in asked:
            critic = Critic(self.model, config, self.process, budget=self.actor.budget)
            prove_critic(critic, config, self.text)
        teacher = None
        if "teacher" in context.inputs:
            teacher = (ServedTeacher if config.model.teacher_url else EngineTeacher if config.own_teacher else Teacher)(
                context, self.model, self.process)
            if isinstance(teacher, Teacher):
                prove_teacher(teacher, config, self.text)
        return Estimates(self.actor, references, critic, teacher, asked)

    def _keep_way(self, way: Way, former: str | None) -> None:
        """Logs in which way rows go. Raises ModelError where it is not `former`, that of the checkpoint."""
        if former and former != way.name:
            chosen = self.context.config.trainer.packing != "auto"
            raise ModelError(f"the stage's checkpoint was trained with trainer.packing={former}; now {way}. " + (
                f"Resume with trainer.packing={former} or auto." if chosen else
                "Resume with the packages of before, or delete the stage directory to start again."))
        self.context.made["packing"] = way.name
        if not way.packed or way.unshared or way.unproved:
            self._log(str(way))

    def _newest_checkpoint(self) -> tuple[Path | None, dict[str, Any]]:
        """The newest complete checkpoint and its manifest. Raises ModelError for one of another ZeRO stage."""
        found = checkpoints.complete_checkpoints(self.context.directory)
        if not found:
            return None, {}
        newest = checkpoints.checkpoint_directory(self.context.directory, found[-1])
        zero_stage = self.context.config.trainer.zero_stage
        manifest = checkpoints.read_manifest(self.context.directory, found[-1])
        if manifest["zero_stage"] != zero_stage:
            raise ModelError(f"{newest} was written with trainer.zero_stage={manifest['zero_stage']}, now it is "
                             f"{zero_stage}. Resume with the former, or delete the stage directory to start "
                             "again.")
        return newest, manifest

    def _resume(self, checkpoint: Path | None, manifest: dict[str, Any]) -> int:
        """Loads a checkpoint, or publishes the initial weights; returns the number of steps done."""
        references = self.estimates.references
        if references:
            references.resume(manifest["step"] if checkpoint else 0)
        if checkpoint is None:
            if self.syncs.publishes(0):
                self.publishing.hand_over(0, self._probe_text())
            return 0
        self.actor.zero.load(checkpoint)
        if references and self.saving.moves:
            self.actor.load_reference(checkpoint)
        if self.critic:
            self.critic.load(checkpoint)
        self.actor.budget.restore(manifest.get("token_budget"))
        self.context.log.info("resumes after step %d", manifest["step"])
        if self.syncs.awaits(manifest["step"]):
            self.publishing.hand_over(manifest["step"], self._probe_text())
        return manifest["step"]

    def _admit(self) -> None:
        """Tells the number of steps; engines on the trainer's GPUs open once it is known."""
        if self.process.rank == 0:
            files.write_json(self.context.directory / TOTAL, {
                "total_steps": self.source.total_steps, "overlap": self.context.config.trainer.overlap,
                **({"count": self.source.count} if isinstance(self.source, DataSet) else {})})

    def run(self) -> None:
        self.actor.make_room()
        self._admit()
        self.measured = time.perf_counter()
        try:
            with self.context.ending.deferred():
                for step in range(self.step_done + 1, self.last + 1):
                    self._step(step)
                self.publishing.forget()
                if isinstance(self.source, RewardPairs) and self.last == self.source.total_steps:
                    self.source.score_held_out(self.context, self.actor, self.source.total_steps)
                GRAPHS.close()
                self.saving.finish()
        except Exception:  # any: it is raised again
            self.saving.settle()
            raise
        finally:
            self.ended = True
            self.context.activity.now("ends")
        if self.process.ranks > 1:  # alone it would take half a second on a GPU for nobody
            self.process.stop()

    def _check(self) -> None:
        """Called by the reader while it waits for rollouts."""
        self.writer.check()
        self.saving.check()
        self.context.activity.alive()
        if self.ended:
            raise StageError("the trainer ended while its next batch was waited for")

    def _step(self, step: int) -> None:
        begin = self.measured  # includes work done after the last step's record
        self.saving.check()
        batch = self._batch(step)
        waited = max(batch.available - begin, 0.0)
        train = time.perf_counter()
        result, values = self.algorithm.update(self.steps, batch)
        if self.estimates.references:
            self.estimates.references.follow(step)
        trained = time.perf_counter()
        for line in GRAPHS.news():
            self._log(line)
        self.actor.release_cache()
        publishes = self.syncs.publishes(step) or self._is_asked(step)
        if publishes:
            self.publishing.hand_over(step, *batch.probe(PROBE_TOKENS))
        published = time.perf_counter()
        count = len(batch.rollouts)
        mismatch = self.objective.mismatch(batch.rollouts, result.logprobs[:count]) if count else None
        kept = is_kept(self.context.config, self.source.total_steps, step)
        due = step == self.source.total_steps or step % self.context.config.trainer.save_interval == 0
        if saves := kept or due or step == self.last:
            self.saving.take(step, "kept" if kept else None if due else "unscheduled")
        rows = None
        if self.process.rank == 0:
            end = self.measured = time.perf_counter()
            self.deadline.stepped(end - begin)
            seconds = Seconds(trained - train, published - trained if publishes else None, waited,
                              end - begin - (published - train) - waited, end - begin, self.actor.peak_memory_gib(),
                              self.start)
            self.start = {}
            rows = self.writer.start(self._write, trained_rows(batch, result.logprobs, result.entropies),
                                     step_record(self.context.id, batch, result, mismatch, values, seconds,
                                                 self.load.since(), self.context.config.trainer.overlap))
        if saves:
            self.saving.start(step, rows, last=step == self.last)

    def _end(self, step: int, number: int = signal.SIGTERM, why: str = "") -> NoReturn:
        """Ends after `step`, the last whole one, on request or for the signal `number`, and saves it if the time
        suffices. Collective."""
        ending, grace = self.context.ending, self.context.config.log.grace_seconds
        stopped = ending.stopped or Stopped(number)  # another rank was asked
        self.saving.finish()
        saved = (checkpoints.complete_checkpoints(self.context.directory) or [0])[-1]
        left = grace - (time.monotonic() - ending.began if ending.began else 0.0)
        if step == saved:
            note = f"step {step} is saved" if step else "no step was complete"
        elif _any(self.process, (needed := self.deadline.save_seconds) > left):
            note = (f"step {step} is not saved: a checkpoint takes {needed:.1f} s, and {left:.1f} s of "
                    f"log.grace_seconds={grace:g} were left; {kept(saved)}")
        else:
            self.saving.take(step, "unscheduled")
            self.publishing.forget()
            self.writer.finish()
            self.saving.start(step, last=True)
            self.saving.finish()
            note = f"step {step} is saved"
        self.process.stop()
        raise Stopped(stopped.number, note + why)

    def _log(self, line: str | None) -> None:
        """Writes a line to the log, once for all ranks."""
        if line and self.process.rank == 0:
            self.context.log.info("%s", line)

    def _batch(self, step: int) -> Batch:
        """The batch of a step; starts preparing the next one in the background."""
        self.context.activity.now("prepares the batch", f"step {step}")
        if step == self.step_done + 1:
            self.reader.start(self._prepare, step)
        self._wait(step)
        while self._is_asked(step - 1):
            self.publishing.hand_over(step - 1, self._probe_text())
            self._wait(step)
        batch = self.reader.finish()
        self.context.activity.now("trains", f"step {step}")
        if not self.is_ahead:
            self.estimates.add(batch.rollouts)
            batch = self.source.with_advantages(batch)
        if step < self.last:
            self.reader.start(self._prepare, step + 1)
        return batch

    def _wait(self, step: int) -> None:
        """Waits for the batch of a step, or until an explorer asks for the weights of the step before. Ends on request.
        Collective."""
        while not (self.reader.wait(POLL_SECONDS) or self.context.ending.stopped or self.deadline.is_near
                   or self.syncs.is_asked(step - 1)):
            pass
        late = self.deadline.is_near
        if _any(self.process, late or self.context.ending.stopped is not None):
            if _any(self.process, late):
                self._end(step - 1, OUT_OF_TIME, f", before the time limit of job {slurm.this_job()}")
            self._end(step - 1)

    def _probe_text(self) -> list[int]:
        """Token ids for the probe of a version before which no rollout was read."""
        return self.text[: min(longest_sequence(self.context.config.model) - 1, PROBE_TOKENS)]

    def _is_asked(self, step: int) -> bool:
        """Whether an explorer waits for the weights of this step. Collective where it may."""
        return self.syncs.asks and _any(self.process, self.syncs.is_asked(step))

    def _prepare(self, step: int) -> Batch:
        """Runs in the background: the whole batch, or the part that needs no model forward."""
        batch = self.source.cut(step)
        return self.source.with_advantages(batch) if self.is_ahead else batch

    @property
    def is_ahead(self) -> bool:
        """Whether the next batch gets its advantages while a step is computed: they depend on rows alone."""
        return not (self.estimates.needed or self.algorithm.keeps_state)

    def _write(self, rows: list[records.Trained], step: records.Step) -> None:
        """Writes the tables of a step, `steps` last: the parent reports a step when that file exists."""
        directory = self.context.directory
        if rows:
            tables.write(tables.step_file(directory, "trained", step.step), records.Trained, rows)
        tables.write(tables.step_file(directory, "steps", step.step), records.Step, [step])


def _any(process: Process, holds: bool) -> bool:
    """Whether it holds on any rank. Collective."""
    return holds if process.ranks == 1 else bool(process.all_reduce(torch.tensor(int(holds), device=process.device)))


def learn(context: Context) -> None:
    with opening():
        import_light()
        trainer = Trainer(context)
    trainer.run()


if __name__ == "__main__":
    run_child(learn, "trainer", __doc__)
