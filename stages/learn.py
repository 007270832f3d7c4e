"""The trainer of a stage, one process per rank: batches in, optimizer steps, weights and checkpoints out.

Started by stages/train.py (demonstrations) and stages/rft.py (experience). The loop is the same for both; only where
a batch comes from, and which loss it meets, differs (stages/learner/batches.py).
"""

import gc
import shutil
import time
from functools import partial
from pathlib import Path

import numpy as np

from operators.arguments import arguments
from operators.loss import POLICY_LOSSES
from pipeline import checkpoints, files, records, tables
from pipeline.background import Background
from pipeline.errors import ModelError, StageError, pick
from pipeline.process import Context
from stages.children import run_child
from stages.follow import TOTAL
from stages.learner.batches import Batch, Demonstrations, Rollouts
from stages.learner.zero import Result, ZeroLearner, learning_rate
from workflows.prompts import keep_template

PROBE_TOKENS = 256


class Trainer:
    """One rank of a training stage."""

    def __init__(self, context: Context):
        self.context, config = context, context.config
        self.model = checkpoints.model_directory(context.inputs["model"])
        demonstrations = config.algorithm.algorithm_type == "sft"
        self.writer = Background()  # writes the tables of one step while the next is computed
        self.reader = Background()  # cuts the batch of the next step meanwhile, if its rollouts are there
        self.ended = False
        self.measured = 0.0  # when the seconds of the last step were taken
        self.source = Demonstrations(context, self.model) if demonstrations else Rollouts(context, self._check)
        self.loss = self.source.loss if demonstrations else _policy_loss(config.algorithm)
        temperature = 1.0 if demonstrations else config.model.temperature
        self.learner = ZeroLearner(self.model, config, temperature)
        self.step_done = self._take_up()

    def _take_up(self) -> int:
        """Loads the newest checkpoint, if there is one; returns its step."""
        found = checkpoints.complete_checkpoints(self.context.directory)
        if not found:
            if isinstance(self.source, Rollouts):
                self._publish(0, _arbitrary_tokens(self.learner, self.context.config))
            return 0
        newest = checkpoints.checkpoint_directory(self.context.directory, found[-1])
        made = files.read_json(newest / files.MANIFEST)["zero_stage"]
        if made != self.learner.zero_stage:
            raise ModelError(f"{newest} was written with trainer.zero_stage={made}, now it is "
                             f"{self.learner.zero_stage}. Go on with the former, or delete the stage directory to "
                             "begin again.")
        self.learner.load(newest)
        self.context.log.info("goes on after step %d", found[-1])
        return found[-1]

    def run(self) -> None:
        if self.learner.rank == 0:
            files.write_json(self.context.directory / TOTAL, {"total_steps": self.source.total_steps})
        self.measured = time.perf_counter()
        try:
            for step in range(self.step_done + 1, self.source.total_steps + 1):
                self._step(step)
        finally:
            self.ended = True
        self.learner.close()

    def _check(self) -> None:
        """Called by the reader while it waits for rollouts."""
        self.writer.check()
        if self.ended:
            raise StageError("the trainer ended while its next batch was waited for")

    def _step(self, step: int) -> None:
        begin = self.measured  # so that what the last step did after its record counts too
        lr = learning_rate(step, self.source.total_steps, self.context.config.algorithm.optimizer)
        batch = self._batch(step)
        waited = max(batch.available - begin, 0.0)
        train = time.perf_counter()
        result = self.learner.step(batch.rows, self.loss, lr)
        trained = time.perf_counter()
        self.learner.release_cache()
        if self.source.publishes(step):
            self._publish(step, batch.longest_row(PROBE_TOKENS))
        published = time.perf_counter()
        rows = self.source.finish(step, batch, self._gather(result, len(batch.rows)))
        saves = step == self.source.total_steps or step % self.context.config.trainer.save_interval == 0
        if saves:
            self._save(step)
        if self.learner.rank == 0:
            end = self.measured = time.perf_counter()
            row = self.source.step_row(step, batch, result)
            row |= {
                "lr": lr, "train_seconds": trained - train,
                "publish_seconds": published - trained if self.source.publishes(step) else None,
                "train_wait_seconds": waited, "seconds": end - begin,
                "train_other_seconds": end - begin - (published - train) - waited,
                "peak_memory_gib": self.learner.peak_memory_gib(),
            }
            self.writer.start(self._write, rows, records.Step(**row))
        if saves:  # last: a resumed stage goes on behind it, so the step must have left all its files
            self.writer.finish()
            self._keep(step)

    def _batch(self, step: int) -> Batch:
        """The batch of a step; begins with the next one."""
        if step == self.step_done + 1:
            self.reader.start(self.source.batch, step)
        batch = self.reader.finish()
        if step < self.source.total_steps:
            self.reader.start(self.source.batch, step + 1)
        return batch

    def _write(self, rows: list[records.Trained], step: records.Step) -> None:
        """The tables of a step, `steps` last: the parent reports a step when it is there."""
        directory = self.context.directory
        if rows:
            tables.write(tables.step_file(directory, "trained", step.step), records.Trained, rows)
        tables.write(tables.step_file(directory, "steps", step.step), records.Step, [step])

    def _gather(self, result: Result, count: int) -> list[np.ndarray]:
        """Log-probs of every row of the batch, on every rank."""
        import torch

        parts = [result.logprobs]
        if self.learner.ranks > 1:
            parts = [None] * self.learner.ranks
            torch.distributed.all_gather_object(parts, result.logprobs)
        merged = {row: values for part in parts for row, values in part.items()}
        return [merged[row] for row in range(count)]

    def _publish(self, version: int, tokens: list[int]) -> None:
        """Hands weights to the explorer, with the probe that proves them. Collective under ZeRO-3."""
        probe = {"tokens": tokens, "logprobs": self.learner.score(tokens)}
        if self.learner.zero_stage < 3:
            if self.learner.rank == 0:
                checkpoints.publish(self.context.directory, version, self.learner.export, probe)
            return
        state = self.learner.full_state()
        if state is not None:
            export = partial(self.learner.write, state)
            checkpoints.publish(self.context.directory, version, export, probe)

    def _save(self, step: int) -> None:
        """Writes a checkpoint under a hidden name."""
        temporary = self._hidden(step)
        if self.learner.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
            checkpoints.copy_model_files(self.model, temporary / "model")
            keep_template(temporary / "model", self.context.config.model)
        self.learner.barrier()
        try:
            self.learner.save(temporary)
            self.learner.export(temporary / "model")
        except Exception:  # a full disk, most likely: give back what was taken of it
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self.learner.barrier()
        if self.learner.rank == 0:
            weights = files.hash_file(temporary / "model" / checkpoints.WEIGHTS)
            manifest = {"step": step, "weights_hash": weights, "zero_stage": self.learner.zero_stage}
            files.write_json(temporary / files.MANIFEST, manifest)
            files.flush_tree(temporary)

    def _hidden(self, step: int) -> Path:
        return self.context.directory / "checkpoints" / f".step={step:06d}.tmp"

    def _keep(self, step: int) -> None:
        """Makes the checkpoint visible in one rename, and deletes old ones."""
        if self.learner.rank == 0:
            final = checkpoints.checkpoint_directory(self.context.directory, step)
            shutil.rmtree(final, ignore_errors=True)
            self._hidden(step).rename(final)
            checkpoints.keep_newest(self.context.directory, self.context.config.trainer.max_checkpoints_to_keep)
        self.learner.barrier()


def _policy_loss(algorithm):
    """The policy loss by name, with the user's arguments bound."""
    function = pick(POLICY_LOSSES, algorithm.policy_loss_fn, "algorithm.policy_loss_fn")
    bound = arguments(function, algorithm.policy_loss_fn_args, "algorithm.policy_loss_fn_args")
    return partial(function, **bound)


def _arbitrary_tokens(learner: ZeroLearner, config) -> list[int]:
    """Token ids to prove version 0 with: there is no rollout yet to take them from."""
    vocabulary = learner.engine.module.model.config.vocab_size
    count = min(config.model.max_prompt_tokens + config.model.max_response_tokens - 1, PROBE_TOKENS)
    return np.random.default_rng(0).integers(0, vocabulary, count).tolist()


def learn(context: Context) -> None:
    trainer = Trainer(context)
    gc.collect()
    gc.freeze()  # the libraries' objects live as long as the process: spare the collector the walk
    trainer.run()


if __name__ == "__main__":
    run_child(learn, "trainer", __doc__)
