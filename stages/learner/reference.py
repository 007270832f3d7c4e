"""Log-probs of the reference policy, the weights at the start of a stage.

The policy's own module scores them, with the initial weights swapped in from host memory: a second model would occupy
device memory at every step, or need to be reloaded each time. With an adapter only the adapter is swapped; the base
weights are shared.
"""

from functools import partial
from pathlib import Path

from pipeline.job.context import Context
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


def start_hash(model, config) -> str:
    """Hash of a stage's initial weights: of the model, and of the adapter it starts with, if any."""
    adapters = [weights_hash(resolve(one.path)) for one in config.model.lora_configs if one.path]
    return files.hash_json([weights_hash(model), *adapters]) if adapters else weights_hash(model)
