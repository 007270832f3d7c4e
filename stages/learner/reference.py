"""Log-probs of the reference policy: the weights at the start of a stage, or those that follow the policy.

The policy's own module scores them, with the initial weights swapped in from host memory: a second model would occupy
device memory at every step, or need to be reloaded each time. With an adapter only the adapter is swapped; the base
weights are shared.
"""

from functools import partial
from pathlib import Path

from pipeline.job.context import Context
from pipeline.settings.setting import at
from pipeline.store import files
from pipeline.store.checkpoints import weights_hash
from pipeline.store.digests import resolve
from stages.learner.actor import Actor
from stages.learner.fixed_scores import FixedScores


class References(FixedScores):
    """The column `ref_logprobs` [R], cached in the table `reference`."""

    def __init__(self, context: Context, model: Path, actor: Actor):
        """model: the stage's initial Hugging Face directory; actor: one that keeps those weights."""
        digest = partial(start_hash, model, context.config)
        super().__init__(context, digest, actor.process, actor.reference_logprobs, "reference", "ref_logprobs")
        self.actor, self.first, self.update = actor, self.hash, at(
            context.config, "trainer.reference_update")

    def follow(self, step: int) -> None:
        """Updates the reference by the policy where it is due after a train step. Collective."""
        if due(self.update, step):
            self.actor.follow(self.update.mix)
            self.after(step)

    def after(self, step: int) -> None:
        """Makes rows be scored anew by the reference as it is after a train step."""
        number = step // self.update.interval if self.update.interval else 0
        update = [self.update.interval, self.update.mix, number]
        self.hash, self.recent = files.hash_json([self.first, *update])[:16] if number else self.first, {}


def due(update, step: int) -> bool:
    """Whether the reference follows the policy after a train step. update: the section."""
    return update.interval is not None and step % update.interval == 0


def start_hash(model, config) -> str:
    """Hash of a stage's initial weights: of the model, and of the adapter it starts with, if any."""
    adapters = [weights_hash(resolve(one.path)) for one in config.model.lora_configs if one.path]
    return files.hash_json([weights_hash(model), *adapters]) if adapters else weights_hash(model)
