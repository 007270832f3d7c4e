"""Losses on preference pairs: rows 2k and 2k + 1 of a micro-batch are pair k, the chosen one first.

Every token has the loss of its pair (kto: of its row), so that the seq-mean-token-mean average is exactly the mean over
pairs. The log-ratio of a response is the sum over its action tokens.
"""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from ouroboros.operators.losses.ratio import OF_RESPONSES, Losses, row_vector
from ouroboros.pipeline.settings.arguments.base import Loss
from ouroboros.pipeline.store.lazy import Tensor, torch


class OfPairs(Loss):
    """A loss on pairs."""
    compares_pairs = True
    aggregation = OF_RESPONSES


class Ipo(OfPairs):
    """Identity preference optimisation, on pairs: the margin has a target, 1 / (2 beta).

    Azar et al. 2023, arXiv:2310.12036, eq. 17: loss = (D - 1 / (2 beta))^2. D as in dpo, a sum over tokens;
    length_normalized: the difference of the means over the tokens of each response, as the authors trained it by TRL's
    account. beta is the paper's tau. Assumes no preference model: the margin has a target, so deterministic preferences
    do not drive the policy to extremes. At pi = ref: 1 / (4 beta^2); at the target 0; two identical responses have no
    gradient.
    """
    beta: float = Field(0.1, gt=0, description="the paper's tau")
    length_normalized: bool = Field(False, description="whether the log ratio of a response is the mean over its "
                                                       "tokens, as in TRL; false: the sum")

    def __call__(self, logprobs: Tensor, ref_logprobs: Tensor, rows: Tensor) -> Losses:
        chosen, rejected = log_ratios(logprobs, ref_logprobs, rows, self.length_normalized)
        loss = (chosen - rejected - 1.0 / (2.0 * self.beta)).square()
        return loss[rows // 2], pair_statistics(chosen, rejected, self.beta, rows)


class Simpo(OfPairs):
    """Simple preference optimisation, on pairs, without a reference: mean log-probs and a target margin.

    Meng et al. 2024, arXiv:2405.14734, eq. 6. m = beta (mean log pi of the chosen tokens - mean of the rejected) -
    simpo_gamma; loss = -(1 - s) log sigmoid(m) - s log sigmoid(-m), s = label_smoothing, as TRL's CPO with loss_type
    simpo. Assumes that the mean log-prob is what generation maximises, and a low learning rate: nothing holds the
    policy to where it began. Two identical responses have no gradient, and the loss log(1 + exp(simpo_gamma)) for
    s = 0.
    """
    beta: float = Field(2.0, gt=0, description="factor of mean log-probs")
    simpo_gamma: float = Field(1.0, ge=0, description="margin that the chosen response is to have, after the factor")
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="share of pairs whose preference is wrong")

    def __call__(self, logprobs: Tensor, rows: Tensor) -> Losses:
        chosen, rejected = log_ratios(logprobs, torch.zeros_like(logprobs), rows, normalized=True)
        right, wrong = smoothed(self.beta * (chosen - rejected) - self.simpo_gamma, self.label_smoothing)
        return (right + wrong)[rows // 2], pair_statistics(chosen, rejected, self.beta, rows)


class Orpo(OfPairs):
    """Odds ratio preference optimisation, on pairs, without a reference: likelihood and the ratio of odds.

    Hong et al. 2024, arXiv:2403.07691, eq. 6 and 7. loss = -l_c - beta log sigmoid(log odds_c - log odds_r), l the mean
    log-prob of a response's tokens, odds = p / (1 - p) of p = exp(l); the likelihood is the chosen response's alone,
    where TRL's is also of the prompt. Assumes a model that has not been fine-tuned: the first term does that. Two
    identical responses leave the gradient of the likelihood. Where p rounds to 1, log(1 - p) counts as that of 1 -
    6e-8.
    """
    beta: float = Field(0.1, ge=0, description="weight of the odds ratio, the paper's lambda")

    def __call__(self, logprobs: Tensor, rows: Tensor) -> Losses:
        chosen, rejected = log_ratios(logprobs, torch.zeros_like(logprobs), rows, normalized=True)
        log_odds = (chosen - _log_of_the_rest(chosen)) - (rejected - _log_of_the_rest(rejected))
        loss = -chosen - self.beta * torch.nn.functional.logsigmoid(log_odds)
        return loss[rows // 2], pair_statistics(chosen, rejected, self.beta, rows) | {
            "log_odds_ratio": log_odds.detach()[rows // 2], "sft_loss": -chosen.detach()[rows // 2]}


class Kto(OfPairs):
    """Kahneman-Tversky optimisation, on pairs whose two responses are judged apart.

    Ethayarajh et al. 2024, arXiv:2402.01306. loss = w_d (1 - sigmoid(beta (g - z))) for a chosen row, w_u (1 -
    sigmoid(beta (z - g))) for a rejected one, g its log-ratio. The two rows of a pair are independent, so weights may
    balance them. z is the paper's KL(pi || ref), here a constant reference_point >= 0: 0 is exact at the start, and
    later assumes that the policy stays near the reference. With estimate_kl the learner gives the paper's estimate as
    estimated_kl: max(0, mean of log pi - log ref), without gradient, over prompts with the responses of a pair with
    another prompt, of the whole train batch, because one over the micro-batch would make the loss depend on the split;
    0 where all have one prompt. At pi = ref and z = 0 each row has half its weight.
    """
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

    @property
    def estimates_kl(self) -> bool:
        return self.estimate_kl

    def __call__(self, logprobs: Tensor, ref_logprobs: Tensor, rows: Tensor,
                 estimated_kl: Tensor | None = None) -> Losses:
        chosen, rejected = log_ratios(logprobs, ref_logprobs, rows)
        point = self.reference_point if estimated_kl is None else estimated_kl[0]
        good = self.desirable_weight * torch.sigmoid(self.beta * (point - chosen))
        bad = self.undesirable_weight * torch.sigmoid(self.beta * (rejected - point))
        found = {} if estimated_kl is None else {"estimated_kl": estimated_kl}
        told = pair_statistics(chosen, rejected, self.beta, rows) | found
        return torch.stack([good, bad], dim=1).flatten()[rows], told


def smoothed(margin: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """The losses of a right and of a wrong label, each weighted by its share, [pairs] each."""
    log_sigmoid = torch.nn.functional.logsigmoid
    return -(1.0 - label_smoothing) * log_sigmoid(margin), -label_smoothing * log_sigmoid(-margin)


def _log_of_the_rest(logprobs: Tensor) -> Tensor:
    """log(1 - p) of log p."""
    return torch.log(-torch.expm1(logprobs.clamp(max=-2.0**-24)))


def log_ratios(logprobs: Tensor, ref_logprobs: Tensor, rows: Tensor, normalized: bool = False) -> tuple[Tensor, Tensor]:
    """log(pi / ref) of the chosen and of the rejected responses, [pairs] each. normalized: means over their tokens."""
    sums = row_vector(logprobs - ref_logprobs, rows)
    assert len(sums) % 2 == 0, "a pair was split over micro-batches, or a rejected response has no action token"
    if normalized:
        sums = sums / row_vector(torch.ones_like(logprobs), rows).clamp(min=1.0)
    return sums[0::2], sums[1::2]


def pair_statistics(chosen: Tensor, rejected: Tensor, beta: float, rows: Tensor) -> dict[str, Tensor]:
    """chosen_reward and rejected_reward (beta log-ratio; beta mean log-prob without a reference), accuracy (1 where the
    chosen's is higher), [N]."""
    values = {"chosen_reward": beta * chosen, "rejected_reward": beta * rejected, "accuracy": (chosen > rejected)}
    return {name: value.detach().to(chosen.dtype)[rows // 2] for name, value in values.items()}
