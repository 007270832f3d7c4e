"""Arguments of the policy losses, and the columns that each takes: functions of operators/losses/."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from ouroboros.pipeline.settings.arguments.base import Arguments, described

RATIO = ("logprobs", "old_logprobs", "advantages")
MIXED = (*RATIO, "rows", "is_expert")
PAIRED = ("logprobs", "ref_logprobs", "rows")
OF_RESPONSES = "seq-mean-token-mean"  # the aggregation of losses whose objective is a mean over responses


class Clip(Arguments):
    """The bounds 1 - low and 1 + high of a ratio."""
    clip_range: float = Field(0.2, ge=0, description="both bounds, unless they are set apart")
    clip_range_low: float | None = Field(None, ge=0, description="the ratio is clipped at 1 - this; null: clip_range")
    clip_range_high: float | None = Field(None, ge=0, description="the ratio is clipped at 1 + this; null: clip_range")


class DualClip(Clip):
    """The same, with a bound for negative advantages."""
    clip_ratio_c: float | None = Field(3.0, gt=1, description="where A < 0 the loss is at most -A times this (dual "
                                                              "clip); null: no bound")


class Cispo(Arguments):
    """Clipped importance weights: a token that PPO would drop still teaches."""
    columns = RATIO
    clip_range_low: float = Field(1.0, ge=0, description="the weight is clipped at 1 - this; 1: no bound below")
    clip_range_high: float = Field(0.28, ge=0, description="the weight is clipped at 1 + this")
    enable_mask_clip: bool = Field(False, description="whether tokens that PPO would clip by the mask's ranges weigh 0")
    mask_clip_range_low: float = Field(1.0, ge=0, description="lower range of the mask, where A < 0: ratios below 1 - "
                                                              "this")
    mask_clip_range_high: float = Field(0.28, ge=0, description="upper range of the mask, where A > 0: ratios above 1 "
                                                                "+ this")


class ClipCov(Clip):
    """PPO's clip, and no gradient on some tokens of large covariance of advantage and log-prob."""
    columns = RATIO
    chooses_tokens = True
    clip_cov_ratio: float = Field(2e-4, gt=0, le=1, description="tokens that are left out, as a share of the batch's; "
                                                                "one at least")
    clip_cov_lb: float = Field(1.0, description="only tokens of a covariance above this are left out")
    clip_cov_ub: float = Field(5.0, description="only tokens of a covariance below this are left out")


class KlCov(Arguments):
    """The unclipped surrogate, with a KL to the sampling policy on the tokens of the largest covariance."""
    columns = RATIO
    chooses_tokens = True
    kl_cov_ratio: float = Field(2e-4, gt=0, le=1, description="tokens with the KL term, as a share of the batch's; one "
                                                              "at least")
    ppo_kl_coef: float = Field(1.0, ge=0, description="weight of the KL term")


class DecoupledPpo(Clip):
    """PPO whose trust region is not around the stale policy that sampled."""
    columns = ("logprobs", "rollout_logprobs", "prox_logprobs", "advantages")
    behave_weight_cap: float | None = Field(None, gt=0, description="largest weight of a token; null: no bound")


class OfPairs(Arguments):
    """A loss on pairs."""
    columns = PAIRED
    compares_pairs = True
    aggregation = OF_RESPONSES


class Dpo(OfPairs):
    """Direct preference optimisation, on pairs."""
    beta: float = Field(0.1, gt=0, description="strength of the regularisation towards the reference")
    loss_type: Literal["sigmoid", "hinge", "robust"] = Field("sigmoid", description=(
        "function of the margin; hinge: without gradient above 1 / beta; robust: unbiased where the share "
        "label_smoothing of preferences is flipped"))
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, validate_default=True, description=(
        "share of pairs whose preference is wrong; at 0.5 there is none to learn"))

    @field_validator("label_smoothing")
    @classmethod
    def _of_its_type(cls, value: float, info: ValidationInfo) -> float:
        if value and info.data.get("loss_type") == "hinge":
            raise ValueError("loss_type=hinge has none; needed 0")
        return value


class Divergence(Clip):
    """The bounds of a divergence of the two policies at a token, each taken as sampled token or any other."""
    columns = RATIO
    clip_ratio_c: float = Field(20.0, gt=1, description="largest weight of a token: the ratio is cut there")


class DppoTv(Divergence):
    """PPO with a bound on the total variation at each token in place of the ratio."""
    clip_range: float = Field(0.15, ge=0, le=1, description="largest change of a token's probability that still "
                                                            "teaches, unless they are set apart")
    clip_range_low: float | None = Field(None, ge=0, le=1, description="largest fall where A < 0; null: clip_range")
    clip_range_high: float | None = Field(None, ge=0, le=1, description="largest rise where A > 0; null: clip_range")


class DppoKl(Divergence):
    """PPO with a bound on the KL divergence at each token in place of the ratio."""
    clip_range: float = Field(0.05, ge=0, description="largest KL(sampling policy || policy) of a token, nats")
    clip_range_low: float | None = Field(None, ge=0, description="largest KL of a token where A < 0, nats; null: "
                                                                 "clip_range")
    clip_range_high: float | None = Field(None, ge=0, description="largest KL of a token where A > 0, nats; null: "
                                                                  "clip_range")


class ForwardKlTopk(Arguments):
    """Forward KL to the teacher over its likeliest tokens, all others being one event."""
    columns = ("top_logprobs", "teacher_top_logprobs")
    needs_teacher = True
    top_k: int = Field(64, ge=1, le=1024, description="number of the teacher's likeliest tokens whose log-probs are "
                                                      "compared, at each token of a response")


class Gmpo(Clip):
    """Geometric-mean policy optimisation: the ratio of the whole response, each token's clipped before."""
    columns = (*RATIO, "rows")
    aggregation = OF_RESPONSES
    clip_range: float = Field(0.4, ge=0, description="both bounds of a token's log ratio, unless they are set apart")
    clip_range_low: float | None = Field(None, ge=0, description="log ratios are clipped at minus this; null: "
                                                                 "clip_range")
    clip_range_high: float | None = Field(None, ge=0, description="log ratios are clipped at this; null: clip_range")


class Gspo(Arguments):
    """Group sequence policy optimisation: the ratio of the whole response, normalised by its length."""
    columns = (*RATIO, "rows")
    aggregation = OF_RESPONSES
    clip_range_low: float = Field(3e-4, ge=0, le=1, description="the ratio is clipped at 1 - this")
    clip_range_high: float = Field(4e-4, ge=0, description="the ratio is clipped at 1 + this")


class Ipo(OfPairs):
    """Identity preference optimisation, on pairs: the margin has a target, 1 / (2 beta)."""
    beta: float = Field(0.1, gt=0, description="the paper's tau")
    length_normalized: bool = Field(False, description="whether the log ratio of a response is the mean over its "
                                                       "tokens, as in TRL; false: the sum")


class Orpo(OfPairs):
    """Odds ratio preference optimisation, on pairs, without a reference: likelihood and the ratio of odds."""
    columns = ("logprobs", "rows")
    beta: float = Field(0.1, ge=0, description="weight of the odds ratio, the paper's lambda")


class Simpo(OfPairs):
    """Simple preference optimisation, on pairs, without a reference: mean log-probs and a target margin."""
    columns = ("logprobs", "rows")
    beta: float = Field(2.0, gt=0, description="factor of mean log-probs")
    simpo_gamma: float = Field(1.0, ge=0, description="margin that the chosen response is to have, after the factor")
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="share of pairs whose preference is wrong")


class Kto(OfPairs):
    """Kahneman-Tversky optimisation, on pairs whose two responses are judged apart."""
    beta: float = Field(0.1, gt=0, description="strength of the regularisation towards the reference")
    desirable_weight: float = Field(1.0, ge=0, description="weight of chosen responses")
    undesirable_weight: float = Field(1.0, ge=0, validate_default=True, description=(
        "weight of rejected responses; one of both is above 0"))
    reference_point: float = Field(0.0, ge=0, description="KL(policy || reference) to compare with, given, nats")
    estimate_kl: bool = Field(False, validate_default=True, description=(
        "whether that KL is estimated in each step instead, from each prompt of the batch with the responses of "
        "a pair with another prompt, as in the paper: two forwards more"))

    @field_validator("undesirable_weight")
    @classmethod
    def _weighs(cls, value: float, info: ValidationInfo) -> float:
        if value == info.data.get("desirable_weight") == 0:
            raise ValueError("with desirable_weight=0 every gradient is 0; needed one of the two above 0")
        return value

    @field_validator("estimate_kl")
    @classmethod
    def _one_of_both(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("reference_point"):
            raise ValueError("excludes reference_point, which it estimates; needed one of the two")
        return value


class RewardModel(OfPairs):
    """Bradley-Terry likelihood of preferences, of scores: what trains a reward model."""
    columns = ("scores", "margin", "rows")
    scores_responses = True
    center_rewards_coefficient: float = Field(0.0, ge=0, description=(
        "weight of the squared sum of a pair's scores, which draws their mean to 0 (TRL recommends 0.01)"))


class M2po(Arguments):
    """Second-moment trust policy: the tokens of the largest squared log ratios teach nothing."""
    columns = ("logprobs", "rollout_logprobs", "advantages", "rows")
    chooses_tokens = True
    m2_threshold: float = Field(0.04, gt=0, description="largest mean of the squared log ratio, by level")
    level: Literal["sequence", "batch"] = Field("sequence", description=(
        "what the mean is taken over: each row, or as its authors have it all tokens of the batch, a forward more"))


class Mix(DualClip):
    """PPO on rollouts beside the likelihood of expert rows, with a fixed share."""
    columns = MIXED
    mu: float = Field(0.1, ge=0, le=1, description="share of imitation; the rest is PPO's")


class MixChord(DualClip):
    """CHORD: mix, with a share that follows a schedule and token weights for imitation."""
    columns = (*MIXED, "step")
    mu_warmup_steps: int = Field(0, ge=0, description="optimizer steps in which mu rises from 0 to mu_peak")
    mu_decay_steps: int = Field(0, ge=0, description="optimizer steps after them in which mu falls to mu_valley")
    mu_peak: float = Field(0.1, ge=0, le=1, description="share of imitation after the warmup")
    mu_valley: float = Field(0.1, ge=0, le=1, description="share of imitation at the end")
    enable_phi_function: bool = Field(True, description="whether expert rows have the loss sft_phi; false: sft")
    cutoff_prob: float = Field(1.0, gt=0, le=1, description="probability of sft_phi above which tokens teach nothing")


class Opmd(Arguments):
    """Online policy mirror descent: -A log pi / (1 + tau)."""
    columns = ("logprobs", "advantages")
    tau: float = Field(1.0, ge=0, description="strength of the regularisation; it only scales the loss")


class Ppo(DualClip):
    """PPO's clipped surrogate with the dual clip."""
    columns = (*RATIO, "rows")
    enable_sequence_masking: bool = Field(False, description="whether rows with A < 0 far from the policy teach "
                                                             "nothing")
    delta_sequence_masking: float = Field(0.1, description="bound of that mask: largest mean of old - new log-prob, "
                                                           "nats")
    fallback_to_policy_gradient: bool = Field(False, description="whether the ratio is taken as 1, exact for fresh "
                                                                 "rollouts")


class Rec(Arguments):
    """REINFORCE with a choice of clips, weights and regularisers."""
    columns = (*RATIO, "rows")
    epsilon_low: float = Field(0.2, ge=0, description="the clip acts below the ratio 1 - this")
    epsilon_high: float = Field(0.2, ge=0, description="the clip acts above the ratio 1 + this")
    epsilon_low_prime: float = Field(0.6, ge=0, description="lower bound of the ring: where A >= 0, ratios up to 1 - "
                                                            "this teach again")
    epsilon_high_prime: float = Field(2.0, ge=0, description="upper bound of the ring: where A <= 0, ratios from 1 + "
                                                             "this teach again")
    clip_mode: Literal["none", "two-side", "one-side", "ring", "gspo-one-side"] = Field(
        "none", description="where tokens teach nothing: one-side is PPO's; gspo-one-side by the ratio of the row")
    weight: Literal["none", "importance_sampling", "gspo_importance_sampling", "advantage"] = Field(
        "none", description="factor of A: the ratio of the token, of the row, or exp(A / temp)")
    regularizer: Literal["none", "k2", "forward-kl"] = Field(
        "none", description="term added to the loss: k2, the squared log ratio; forward-kl, the negative log-"
                            "likelihood")
    regularizer_coef: float = Field(0.0, ge=0, description="weight of the regularizer")
    temp: float = Field(1.0, gt=0, description="temperature of weight=advantage")


class Sapo(Arguments):
    """Soft adaptive policy optimisation: a gate that fades with the ratio, in place of a clip."""
    columns = RATIO
    aggregation = OF_RESPONSES
    tau_pos: float = Field(1.0, gt=0, description="sharpness of the gate where A > 0")
    tau_neg: float = Field(1.05, gt=0, description="sharpness of the gate elsewhere")


class SftPhi(Arguments):
    """Likelihood weighted by p (1 - p), CHORD's token weights."""
    columns = ("logprobs",)
    cutoff_prob: float = Field(1.0, gt=0, le=1, description="probability above which tokens teach nothing")


class Sppo(Arguments):
    """Softmax PPO: the log ratio, inside a hard region."""
    columns = RATIO
    epsilon: float = Field(0.3, gt=0, description="the region is 1 / (1 + epsilon) <= ratio <= 1 + epsilon")


class Topr(Arguments):
    """Tapered off-policy REINFORCE: failures fade as the policy forgets them."""
    columns = ("logprobs", "rollout_logprobs", "advantages", "rows")
    advantage_threshold: float = Field(0.0, description="advantages above it have weight 1")
    level: Literal["sequence", "token"] = Field("sequence", description="the ratio of the response, or of the token")


POLICY_LOSSES = {
    "cispo": Cispo, "clip_cov": ClipCov, "decoupled_ppo": DecoupledPpo, "dpo": Dpo, "dppo_kl": DppoKl,
    "dppo_tv": DppoTv, "forward_kl_topk": ForwardKlTopk, "gmpo": Gmpo, "gspo": Gspo,
    "gspo_token": described(Gspo, "GSPO with an advantage of each token.", *Gspo.columns),
    "importance_sampling": described(Arguments, "The unclipped surrogate: -A times the ratio.", *RATIO),
    "ipo": Ipo, "kl_cov": KlCov, "kto": Kto, "m2po": M2po, "mix": Mix, "mix_chord": MixChord, "opmd": Opmd,
    "orpo": Orpo, "ppo": Ppo, "rec": Rec, "reward_model": RewardModel, "sapo": Sapo,
    "sft": described(Arguments, "Negative log-likelihood of the given tokens.", "logprobs", types=("sft", "cpt")),
    "sft_is": described(Arguments, "Likelihood weighted by the token's probability (dynamic fine-tuning).", "logprobs"),
    "sft_phi": SftPhi, "simpo": Simpo, "sppo": Sppo, "topr": Topr,
}
