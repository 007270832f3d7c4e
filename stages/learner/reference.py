"""Log-probs of the reference, the weights that a stage began with.

They are scored by the policy's own module, for the time of scoring with the initial weights, which otherwise lie in
host memory: a second model would hold the device's memory at every step, or be loaded anew at each.
"""

from pathlib import Path

from pipeline.process import Context
from stages.learner.actor import Actor
from stages.learner.fixed_scores import FixedScores


class References(FixedScores):
    """The column `ref_logprobs` [R], kept in the table `reference`."""

    def __init__(self, context: Context, model: Path, actor: Actor):
        """model: the Hugging Face directory that the stage began with; actor: one that keeps those weights."""
        super().__init__(context, model, actor.process, actor.reference_logprobs, "reference", "ref_logprobs")
