"""Arguments of what is added to a policy loss (a KL to the reference, the entropy), and the ways of averaging it.

The arguments of every estimate are those of its term in the loss, or in the reward.
"""

from pydantic import Field, ValidationInfo, field_validator

from ouroboros.pipeline.settings.arguments.base import Arguments, Term, described

BOTH = ("logprobs", "ref_logprobs")


class Kl(Term):
    """A KL to the reference with its weight, fixed or adaptive."""
    kl_coef: float = Field(0.001, ge=0, description="weight in the loss, or in the reward")
    adaptive: bool = Field(False, description="whether kl_coef follows the measured KL, so that this nears target_kl")
    target_kl: float | None = Field(None, gt=0, validate_default=True, description="KL to aim at, nats a token; needed "
                                                                                   "with adaptive")
    horizon: float | None = Field(None, gt=0, validate_default=True, description=(
        "rows over which kl_coef grows by the relative error once; needed with adaptive"))

    @field_validator("target_kl", "horizon")
    @classmethod
    def _needed_where_adaptive(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is None and info.data.get("adaptive"):
            raise ValueError("adaptive=true needs a number greater than 0")
        return value


class Entropy(Term):
    """The entropy bonus of each action token."""
    columns = ("entropy",)
    entropy_coef: float = Field(0.0, description="weight in the loss; 0: the entropy is only reported")


KL_ESTIMATORS = {
    "none": described(Kl, "0: no reference is needed, and nothing holds the policy to one.", columns=("logprobs",)),
    "k1": described(Kl, "log policy - log reference: noisy, for a penalty; as a loss its mean gradient is 0.",
                    columns=BOTH),
    "k2": described(Kl, "Half the squared difference of the log-probs; as a loss KL(policy || reference).",
                    columns=BOTH),
    "k3": described(Kl, "exp(difference) - 1 - difference; as a loss KL(reference || policy).", columns=BOTH),
    "low_var_kl": described(Kl, "k3 with clamps, as veRL has it.", columns=BOTH),
    "abs": described(Kl, "The absolute difference of the log-probs; no estimate of the KL.", columns=BOTH),
    "corrected_k3": described(Kl, "k3 on tokens that an older policy sampled.", columns=(*BOTH, "old_logprobs")),
}
ENTROPY_LOSSES = {
    "default": Entropy,
    "mix": described(Entropy, "The same on rollouts alone, where expert rows are mixed in.",
                     columns=("entropy", "is_expert")),
    "none": described(Term, "0: no gradient through the entropy; it is still reported.", columns=("logprobs",)),
}
AGGREGATIONS = {
    "token-mean": described(Arguments, "Sum over all tokens / their number: long responses weigh more."),
    "seq-mean-token-sum": described(Arguments, "Mean over rows of the sum over their tokens."),
    "seq-mean-token-mean": described(Arguments, "Mean over rows of the mean over their tokens: rows weigh alike."),
    "seq-mean-token-sum-norm": described(Arguments, "Mean over rows of sum / model.max_response_tokens."),
}
