"""Log-probs of the reference, the weights that a stage began with.

They are scored by the policy's own module, for the time of scoring with the initial weights, which otherwise lie in
host memory: a second model would hold the device's memory at every step, or be loaded anew at each. Of a model with an
adapter only the adapter is exchanged: the rest is the reference's too.
"""

from functools import partial
from pathlib import Path

from pipeline.job.context import Context
from pipeline.store import files
from pipeline.store.checkpoints import weights_hash
from pipeline.store.digests import resolve
from stages.learner.actor import Actor
from stages.learner.batches.fixed_scores import FixedScores


class References(FixedScores):
    """The column `ref_logprobs` [R], kept in the table `reference`."""

    def __init__(self, context: Context, model: Path, actor: Actor):
        """model: the Hugging Face directory that the stage began with; actor: one that keeps those weights."""
        digest = partial(start_hash, model, context.config)
        super().__init__(context, digest, actor.process, actor.reference_logprobs, "reference", "ref_logprobs")


def start_hash(model, config) -> str:
    """Hash of the weights that a stage begins with: of the model, and of an adapter that it begins with."""
    begun = [weights_hash(resolve(one.path)) for one in config.model.lora_configs if one.path]
    return files.hash_json([weights_hash(model), *begun]) if begun else weights_hash(model)
