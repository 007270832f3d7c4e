"""Log-probs of the reference policy: the weights at the start of a stage, or those that follow the policy.

The policy's own module scores them, with the initial weights swapped in from host memory: a second model would occupy
device memory at every step, or need to be reloaded each time. With an adapter only the adapter is swapped; the base
weights are shared.
"""

from functools import partial
from pathlib import Path

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.store import files, hashes, records, tables
from ouroboros.pipeline.store.checkpoints import weights_hash
from ouroboros.pipeline.store.digests import resolve
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.fixed_scores import FixedScores


class References(FixedScores):
    """The column `ref_logprobs` [R], cached in the table `reference`."""

    def __init__(self, context: Context, model: Path, actor: Actor):
        """model: the stage's initial Hugging Face directory; actor: one that keeps those weights."""
        digest = partial(start_hash, model, context.config)
        super().__init__(context, digest, actor.process, actor.reference_logprobs, "reference", "ref_logprobs")
        self.actor, self.first, self.update = actor, self.hash, at(context.config, "trainer.reference_update")

    def follow(self, step: int) -> None:
        """Updates the reference by the policy where it is due after a train step. Collective."""
        if due(self.update, step):
            self.actor.follow(self.update.mix)
            self.after(step)

    def after(self, step: int) -> None:
        """Makes rows be scored anew by the reference as it is after a train step."""
        self.hash, self.recent = self._hash(step), {}

    def resume(self, step: int) -> None:
        """Continues after a train step: drops what later references scored. The steps are made again, and where
        arithmetic depends on the order of threads, those references are others."""
        self.after(step)
        if self.update.interval is None or self.process.rank != 0:
            return
        known = {self._hash(one) for one in range(0, step + 1, self.update.interval)}
        for number in tables.steps_present(self.context.directory, self.table):
            scored = tables.read(self._file(number), records.FixedLogprobs)
            if not known.issuperset(scored["model_hash"].to_pylist()):
                hashes.remove(self._file(number))

    def _hash(self, step: int) -> str:
        """Names the reference after a train step: by the first one, and how often it followed the policy."""
        number = step // self.update.interval if self.update.interval else 0
        update = [self.update.interval, self.update.mix, number]
        return files.hash_json([self.first, *update])[:16] if number else self.first


def due(update, step: int) -> bool:
    """Whether the reference follows the policy after a train step. update: the section."""
    return update.interval is not None and step % update.interval == 0


def start_hash(model, config) -> str:
    """Hash of a stage's initial weights: of the model, and of the adapter it starts with, if any."""
    adapters = [weights_hash(resolve(one.path)) for one in config.model.lora_configs if one.path]
    return files.hash_json([weights_hash(model), *adapters]) if adapters else weights_hash(model)
