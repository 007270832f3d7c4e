"""Arguments of the advantages: functions of operators/advantages/."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from ouroboros.pipeline.settings.arguments.base import Advantage, described


class Asymre(Advantage):
    """Asymmetric REINFORCE: the reward less the mean of the group, shifted down."""
    compares_groups = True
    baseline_shift: float = Field(-0.1, description="shift added to the mean; below 0 successes teach more than "
                                                    "failures")


class Gigpo(Advantage):
    """Group in group, for attempts of several turns: of whole attempts, and of turns from the same state."""
    compares_groups = True
    compares_states = True
    reads_steps = True
    omega: float = Field(1.0, ge=0, description="weight of the advantage of the turn")
    gamma: float = Field(1.0, ge=0, description="discount from one turn to the next")
    fnorm: Literal["none", "std"] = Field("none", description="divisor of differences; std: the standard deviation + "
                                                              "epsilon")
    epsilon: float = Field(1e-6, ge=0, description="constant added to the standard deviation")


class Compared(Advantage):
    """Rewards compared within a group and divided by their standard deviation."""
    compares_groups = True
    epsilon: float = Field(1e-6, gt=0, description="constant added to the standard deviation")
    std_threshold: float | None = Field(
        None, ge=0, description="groups whose standard deviation is at most this, and groups of one, are left out")
    std_cal_level: Literal["group", "batch"] = Field("group", description="rows whose standard deviation divides")


class Grpo(Compared):
    """Group-relative advantage: the reward less the mean of the group, over their standard deviation."""
    duplicate_experiences: bool = Field(False, description="whether kept groups replace those of std_threshold")
    rank_penalty: float | None = Field(
        None, ge=0, le=1, description="share of the reward that the likeliest responses of a group lose, by rank")


class GrpoPassk(Advantage):
    """GRPO for pass@k, k the size of the group: the best response alone, by its lead over the second best."""
    compares_groups = True
    epsilon: float = Field(1e-6, gt=0, description="constant added to the standard deviation")
    norm_adv_by_std_in_grpo: bool = Field(True, description="whether the lead is divided by the standard deviation of "
                                                            "the group")


class Gdpo(Advantage):
    """Group reward-decoupled normalisation: each component of the reward is compared by itself."""
    compares_groups = True
    reads_components = True
    gdpo_reward_keys: list[str] | None = Field(None, min_length=1, description=(
        "components of the reward that are compared; null: all that the rows of the batch have"))
    gdpo_reward_weights: list[float] | None = Field(None, validate_default=True, description=(
        "weight of each of gdpo_reward_keys, in their order; null: 1 each"))
    epsilon: float = Field(1e-6, gt=0, description="constant added to the standard deviation")
    norm_adv_by_std_in_grpo: bool = Field(True, description="whether a component is divided by its standard deviation "
                                                            "in the group")
    level: Literal["token", "sequence"] = Field("token", description=(
        "what the sum is whitened over: action tokens, so that long responses count more, or responses"))

    @field_validator("gdpo_reward_weights")
    @classmethod
    def _one_each(cls, value: list[float] | None, info: ValidationInfo) -> list[float] | None:
        keys = info.data.get("gdpo_reward_keys")
        if value is not None and len(value) != len(keys or ()):
            raise ValueError(f"needed one for each of gdpo_reward_keys, {len(keys or ())}")
        if value is not None and not any(value):
            raise ValueError("every advantage would be 0; needed a weight other than 0")
        return value


class Maxrl(Advantage):
    """Maximum-likelihood RL: the reward less the mean of the group, over that mean."""
    compares_groups = True
    epsilon: float = Field(1e-6, gt=0, description="constant added to the mean")


class StepWiseGrpo(Compared):
    """GRPO over attempts of several turns, given to each of their turns."""
    enable_step_norm: bool = Field(False, description="whether advantages are divided by the number of turns of the "
                                                      "attempt")


class Jsd(Advantage):
    """Distillation by the generalised Jensen-Shannon divergence to a teacher."""
    needs_teacher = True
    lambda_coef: float = Field(0.5, ge=0, le=1, description=(
        "share of the teacher in the mixture; at 0 KL(teacher || student), at 1 KL(student || teacher)"))
    kl_coef: float = Field(1.0, gt=0, description="factor of the advantage")


class OnPolicyDistill(Advantage):
    """On-policy distillation: log teacher - log student of each token."""
    needs_teacher = True
    kl_coef: float = Field(1.0, gt=0, description="factor of the advantage")


class Opmd(Advantage):
    """Online policy mirror descent: the reward less a baseline of the group."""
    compares_groups = True
    opmd_baseline: Literal["mean", "logavgexp"] = Field("mean", description="baseline of a group; logavgexp: tau log "
                                                                            "mean exp(r / tau)")
    tau: float = Field(1.0, gt=0, description="temperature of logavgexp")


class Ppo(Advantage):
    """Generalised advantage estimation with a critic, whitened over the batch."""
    needs_values = True
    reads_tokens = True
    gamma: float = Field(1.0, ge=0, le=1, description="discount from one action token to the next")
    lam: float = Field(1.0, ge=0, le=1, description="weight of later estimates; 1 is free of the critic's bias")


class Rec(Advantage):
    """Group-relative REINFORCE of the REC family: the reward less the mean over the kept rows."""
    compares_groups = True
    epsilon: float = Field(1e-6, gt=0, description="constant added to the standard deviation")
    std_normalize: bool = Field(False, description="whether advantages are divided by the standard deviation of the "
                                                   "kept rows")
    drop: Literal["balance"] | None = Field(None, description="rows that are left out; balance: as many rows below the "
                                                              "mean are kept as above")


class Reinforceplusplus(Advantage):
    """REINFORCE++: discounted returns, whitened over all action tokens of the batch."""
    reads_tokens = True
    gamma: float = Field(1.0, ge=0, le=1, description="discount from one action token to the next")


ADVANTAGES = {
    "asymre": Asymre,
    "dr_grpo": described(Advantage, "GRPO without the division by the standard deviation.", compares_groups=True),
    "gdpo": Gdpo, "gigpo": Gigpo, "grpo": Grpo, "grpo_passk": GrpoPassk, "jsd": Jsd, "maxrl": Maxrl,
    "on_policy_distill": OnPolicyDistill, "opmd": Opmd, "ppo": Ppo,
    "raft": described(Advantage, "Reward-ranked fine-tuning: the best row of each group, A = 1, and no others.",
                      compares_groups=True, chooses_rows=True),
    "rec": Rec,
    "reinforce": described(Advantage, "The reward itself, without a baseline."),
    "reinforceplusplus": Reinforceplusplus,
    "reinforceplusplus_baseline": described(Advantage, "REINFORCE++ with the mean of the group as a baseline, whitened "
                                                       "over the batch.", compares_groups=True),
    "remax": described(Advantage, "ReMax: the return less the reward of the greedy response to the task.",
                       reads_tokens=True),
    "rloo": described(Advantage, "Leave-one-out: the reward less the mean of the others in the group.",
                      compares_groups=True),
    "step_wise_grpo": StepWiseGrpo,
}
