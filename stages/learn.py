"""The trainer of a stage, one process per rank: turns batches into weights and checkpoints.

Started by stages/train.py (demonstrations), stages/rft.py (experience as it is generated) and stages/offline.py
(experience of an earlier stage). All share this loop; they differ only in the source of the batches and in the loss
(stages/learner/batches/choose.py).
"""

import dataclasses
import shutil
import time
from functools import partial
from pathlib import Path

import numpy as np

from pipeline.job.background import Background
from pipeline.job.context import Context
from pipeline.job.opening import opening
from pipeline.settings.algorithms import PAIR_TYPES, WITH_CRITIC
from pipeline.store import checkpoints, files, records, tables
from pipeline.store.digests import resolve
from pipeline.store.errors import ModelError, StageError
from stages.explorer.children import run_child
from stages.follow import TOTAL
from stages.learner.actor import Actor, Result
from stages.learner.batches.choose import Batch, Cut, step_row
from stages.learner.batches.demonstrations import Demonstrations
from stages.learner.batches.preferences import Preferences
from stages.learner.batches.recorded import Recorded
from stages.learner.batches.rollouts import Rollouts
from stages.learner.batches.texts import Texts
from stages.learner.critic import Critic
from stages.learner.engine.rates import learning_rate
from stages.learner.engine.zero import Process
from stages.learner.estimates import Estimates
from stages.learner.objective import Objective
from stages.learner.reference import References
from stages.learner.teacher import Teacher
from workflows.prompts import keep_template

PROBE_TOKENS = 256
GIVEN = {"sft": Demonstrations, "cpt": Texts} | dict.fromkeys(PAIR_TYPES, Preferences)  # other types: rollouts


class Trainer:
    """One rank of a training stage."""

    def __init__(self, context: Context):
        self.context, config = context, context.config
        self.model = checkpoints.model_directory(context.inputs["model"])
        self.writer = Background()  # writes a step's tables while the next step is computed
        self.reader = Background()  # meanwhile prepares the next batch, if its rollouts exist
        self.ended = False
        self.measured = 0.0  # when the timings of the last step were taken
        self.objective = Objective(config)
        given = GIVEN.get(config.algorithm.algorithm_type)
        experience = Recorded if "experience" in context.inputs else Rollouts
        self.source = given(context, self.model) if given else experience(context, self._check)
        self.terms = {"kl_loss_fn": self.objective.kl} | ({} if given else {"kl_penalty_fn": self.source.penalty})
        self.process = Process.start(config.seed)
        refers = "ref_logprobs" in self.objective.row_columns or any(self.terms.values())
        self.actor = Actor(self.model, config, self.process, 1.0 if given else config.model.temperature, refers)
        references = References(context, self.model, self.actor) if refers else None
        if given and references:
            references.add(self.source.rows, [0] * len(self.source.rows))
        self.critic = None if given else self._open_critic()
        recompute = not given and not config.algorithm.bypass_old_logprobs
        self.estimates = Estimates(self.actor, None if given else references, self.critic, recompute,
                                   self._open_teacher())
        self.step_done = self._take_up()

    def _open_critic(self) -> Critic | None:
        config = self.context.config
        if config.algorithm.advantage_fn not in WITH_CRITIC:
            return None
        path = config.model.critic_model_path
        return Critic(checkpoints.model_directory(resolve(path)) if path else self.model, config, self.process)

    def _open_teacher(self) -> Teacher | None:
        directory = self.context.inputs.get("teacher")
        if directory is None:
            return None
        return Teacher(self.context, checkpoints.model_directory(directory), self.model, self.process)

    @property
    def zero_stage(self) -> int:
        return self.context.config.trainer.zero_stage

    def _take_up(self) -> int:
        """Loads the newest checkpoint, if there is one; returns its step."""
        found = checkpoints.complete_checkpoints(self.context.directory)
        if not found:
            if self.source.hands_over:
                self._publish(0, _arbitrary_tokens(self.actor, self.context.config))
            return 0
        newest = checkpoints.checkpoint_directory(self.context.directory, found[-1])
        manifest = files.read_json(newest / files.MANIFEST)
        if manifest["zero_stage"] != self.zero_stage:
            raise ModelError(f"{newest} was written with trainer.zero_stage={manifest['zero_stage']}, now it is "
                             f"{self.zero_stage}. Go on with the former, or delete the stage directory to begin again.")
        self.actor.zero.load(newest)
        if self.critic:
            self.critic.load(newest)
        for name, term in self.terms.items():
            term.kl_coef = manifest["kl_coef"][name]
        self.context.log.info("goes on after step %d", found[-1])
        return found[-1]

    def run(self) -> None:
        if self.process.rank == 0:
            files.write_json(self.context.directory / TOTAL, {"total_steps": self.source.total_steps})
        self.measured = time.perf_counter()
        try:
            for step in range(self.step_done + 1, self.source.total_steps + 1):
                self._step(step)
        finally:
            self.ended = True
        self.process.stop()

    def _check(self) -> None:
        """Called by the reader while it waits for rollouts."""
        self.writer.check()
        if self.ended:
            raise StageError("the trainer ended while its next batch was waited for")

    def _step(self, step: int) -> None:
        begin = self.measured  # includes work done after the last step's record
        batch = self._batch(step)
        waited = max(batch.available - begin, 0.0)
        train = time.perf_counter()
        result, learnt = self._learn(step, batch)
        trained = time.perf_counter()
        self.actor.release_cache()
        if self.source.publishes(step):
            self._publish(step, batch.longest_row(PROBE_TOKENS))
        published = time.perf_counter()
        rows = self.source.finish(step, batch, result.logprobs)
        saves = step == self.source.total_steps or step % self.context.config.trainer.save_interval == 0
        if saves:
            self._save(step)
        if self.process.rank == 0:
            end = self.measured = time.perf_counter()
            row = step_row(self.context, step, batch, result)
            row |= learnt | {
                "train_seconds": trained - train,
                "publish_seconds": published - trained if self.source.publishes(step) else None,
                "train_wait_seconds": waited, "seconds": end - begin,
                "train_other_seconds": end - begin - (published - train) - waited,
                "peak_memory_gib": self.actor.peak_memory_gib(),
            }
            self.writer.start(self._write, rows, records.Step(**row))
        if saves:  # last: a resumed stage starts after it, so all files of the step must be written first
            self.writer.finish()
            self._keep(step)

    def _learn(self, step: int, batch: Batch) -> tuple[Result, dict]:
        """Makes the optimizer steps; returns result and step fields. Critic warmup leaves the policy as is."""
        trainer, total = self.context.config.trainer, self.source.total_steps
        values = {}
        if self.critic:
            critic_lr = learning_rate(step, total, trainer.critic.optimizer)
            values = dataclasses.asdict(self.critic.step(batch.rollouts, critic_lr))
        updates = self.critic is None or step > trainer.critic_warmup
        lr = learning_rate(step, total, self.context.config.algorithm.optimizer) if updates else 0.0
        self.objective.step = step
        result = self.actor.step(batch.rows, self.objective, lr, updates)
        term, kl = self.objective.kl, result.statistics.get("kl_loss")
        coefficient = {"kl_loss_coef": term.kl_coef} if term else {}
        if term and updates:
            term.steer(kl, len(batch.rows))
        return result, {"lr": lr, **values, **coefficient}

    def _batch(self, step: int) -> Batch:
        """The batch of a step; starts preparing the next one in the background."""
        if step == self.step_done + 1:
            self.reader.start(self._prepare, step)
        found = self.reader.finish()
        if isinstance(found, Cut):
            self.estimates.add(found.rows, found.origins)
            found = self.source.batch(found)
        if step < self.source.total_steps:
            self.reader.start(self._prepare, step + 1)
        return found

    def _prepare(self, step: int) -> Cut | Batch:
        """Runs in the background: the whole batch, or the part that needs no model forward."""
        cut = self.source.cut(step)
        return cut if self.estimates.needed and isinstance(cut, Cut) else self.source.batch(cut)

    def _write(self, rows: list[records.Trained], step: records.Step) -> None:
        """Writes the tables of a step, `steps` last: the parent reports a step when that file exists."""
        directory = self.context.directory
        if rows:
            tables.write(tables.step_file(directory, "trained", step.step), records.Trained, rows)
        tables.write(tables.step_file(directory, "steps", step.step), records.Step, [step])

    def _publish(self, version: int, tokens: list[int]) -> None:
        """Publishes weights to the explorer, with the probe that verifies them. Collective under ZeRO-3."""
        probe = {"tokens": tokens, "logprobs": self.actor.score(tokens)}
        state = self.actor.learnt_state()
        if state is not None:
            export = partial(self.actor.write_learnt, state)
            checkpoints.publish(self.context.directory, version, export, probe)

    def _save(self, step: int) -> None:
        """Writes a checkpoint under a hidden name."""
        temporary = self._hidden(step)
        if self.process.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
            checkpoints.copy_model_files(self.model, temporary / "model")
            keep_template(temporary / "model", self.context.config.model)
        self.process.barrier()
        try:
            self.actor.zero.save(temporary)
            if self.critic:
                self.critic.save(temporary)
            self.actor.export(temporary / "model")
            if self.context.config.model.lora_configs:
                self.actor.export_adapter(temporary / "adapter")
        except Exception:  # most likely a full disk: free the space that was taken
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self.process.barrier()
        if self.process.rank == 0:
            weights = files.hash_file(temporary / "model" / checkpoints.WEIGHTS)
            coefficients = {name: term.kl_coef for name, term in self.terms.items()}
            manifest = {"step": step, "weights_hash": weights, "zero_stage": self.zero_stage, "kl_coef": coefficients}
            files.write_json(temporary / files.MANIFEST, manifest)
            files.flush_tree(temporary)

    def _hidden(self, step: int) -> Path:
        return self.context.directory / "checkpoints" / f".step={step:06d}.tmp"

    def _keep(self, step: int) -> None:
        """Makes the checkpoint visible with one rename, and deletes old ones."""
        if self.process.rank == 0:
            final = checkpoints.checkpoint_directory(self.context.directory, step)
            shutil.rmtree(final, ignore_errors=True)
            self._hidden(step).rename(final)
            checkpoints.keep_newest(self.context.directory, self.context.config.trainer.max_checkpoints_to_keep)
        self.process.barrier()


def _arbitrary_tokens(actor: Actor, config) -> list[int]:
    """Token ids for the probe of version 0, when no rollout exists yet."""
    vocabulary = actor.zero.module.model.config.vocab_size
    count = min(config.model.max_prompt_tokens + config.model.max_response_tokens - 1, PROBE_TOKENS)
    return np.random.default_rng(0).integers(0, vocabulary, count).tolist()


def learn(context: Context) -> None:
    with opening():
        trainer = Trainer(context)
    trainer.run()


if __name__ == "__main__":
    run_child(learn, "trainer", __doc__)
