"""Losses on preference pairs: rows 2k and 2k + 1 of a micro-batch are pair k, the chosen one first.

Every token has the loss of its pair (kto: of its row), so that the seq-mean-token-mean average is exactly the mean over
pairs. The log-ratio of a response is the sum over its action tokens.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ouroboros.operators.losses.ratio import row_vector
from ouroboros.pipeline.settings.arguments.losses import Dpo, Ipo, Kto, Orpo, Simpo

DPO, IPO, KTO, ORPO, SIMPO = Dpo(), Ipo(), Kto(), Orpo(), Simpo()

Loss = tuple[Tensor, dict[str, Tensor]]


def dpo(logprobs: Tensor, ref_logprobs: Tensor, rows: Tensor, beta=DPO.beta, loss_type=DPO.loss_type,
        label_smoothing=DPO.label_smoothing) -> Loss:
    """Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290, eq. 7).

    m = beta D, D = log(pi / ref) of chosen - of rejected, s = label_smoothing. loss_type sigmoid: loss = -(1 - s) log
    sigmoid(m) - s log sigmoid(-m), s the share of wrong labels (conservative DPO, Mitchell 2023). robust: (-(1 - s) log
    sigmoid(m) + s log sigmoid(-m)) / (1 - 2 s), whose mean over labels flipped with chance s is that over true ones
    (Chowdhury et al. 2024, arXiv:2403.00409). hinge: max(0, 1 - m) (SLiC, Zhao et al. 2023, arXiv:2305.10425; Liu et
    al. 2023, arXiv:2309.06657). sigmoid and robust assume preferences that follow the Bradley-Terry model. At pi = ref:
    log 2, hinge 1; two identical responses have no gradient.
    """
    chosen, rejected = _log_ratios(logprobs, ref_logprobs, rows)
    margin = beta * (chosen - rejected)
    if loss_type == "hinge":
        loss = torch.relu(1.0 - margin)
    else:
        right, wrong = _smoothed(margin, label_smoothing)
        loss = (right - wrong) / (1.0 - 2.0 * label_smoothing) if loss_type == "robust" else right + wrong
    return loss[rows // 2], _statistics(chosen, rejected, beta, rows)


def ipo(logprobs: Tensor, ref_logprobs: Tensor, rows: Tensor, beta=IPO.beta,
        length_normalized=IPO.length_normalized) -> Loss:
    """Identity preference optimisation (Azar et al. 2023, arXiv:2310.12036): loss = (D - 1 / (2 beta))^2.

    Eq. 17. D as in dpo, a sum over tokens; length_normalized: the difference of the means over the tokens of each
    response, as the authors trained it by TRL's account. beta is the paper's tau. Assumes no preference model: the
    margin has a target, so deterministic preferences do not drive the policy to extremes. At pi = ref: 1 / (4 beta^2);
    at the target 0; two identical responses have no gradient.
    """
    chosen, rejected = _log_ratios(logprobs, ref_logprobs, rows, length_normalized)
    loss = (chosen - rejected - 1.0 / (2.0 * beta)).square()
    return loss[rows // 2], _statistics(chosen, rejected, beta, rows)


def simpo(logprobs: Tensor, rows: Tensor, beta=SIMPO.beta, simpo_gamma=SIMPO.simpo_gamma,
          label_smoothing=SIMPO.label_smoothing) -> Loss:
    """Simple preference optimisation (Meng et al. 2024, arXiv:2405.14734, eq. 6), without a reference.

    m = beta (mean log pi of the chosen tokens - mean of the rejected) - simpo_gamma; loss = -(1 - s) log sigmoid(m) - s
    log sigmoid(-m), s = label_smoothing, as TRL's CPO with loss_type simpo. Assumes that the mean log-prob is what
    generation maximises, and a low learning rate: nothing holds the policy to where it began. Two identical responses
    have no gradient, and the loss log(1 + exp(simpo_gamma)) for s = 0.
    """
    chosen, rejected = _log_ratios(logprobs, torch.zeros_like(logprobs), rows, normalized=True)
    margin = beta * (chosen - rejected) - simpo_gamma
    right, wrong = _smoothed(margin, label_smoothing)
    loss = right + wrong
    return loss[rows // 2], _statistics(chosen, rejected, beta, rows)


def orpo(logprobs: Tensor, rows: Tensor, beta=ORPO.beta) -> Loss:
    """Odds ratio preference optimisation (Hong et al. 2024, arXiv:2403.07691, eq. 6 and 7), without a reference.

    loss = -l_c - beta log sigmoid(log odds_c - log odds_r), l the mean log-prob of a response's tokens, odds = p / (1 -
    p) of p = exp(l); the likelihood is the chosen response's alone, where TRL's is also of the prompt. Assumes a model
    that has not been fine-tuned: the first term does that. Two identical responses leave the gradient of the
    likelihood. Where p rounds to 1, log(1 - p) counts as that of 1 - 6e-8.
    """
    chosen, rejected = _log_ratios(logprobs, torch.zeros_like(logprobs), rows, normalized=True)
    log_odds = (chosen - _log_of_the_rest(chosen)) - (rejected - _log_of_the_rest(rejected))
    loss = -chosen - beta * logsigmoid(log_odds)
    return loss[rows // 2], _statistics(chosen, rejected, beta, rows) | {
        "log_odds_ratio": log_odds.detach()[rows // 2], "sft_loss": -chosen.detach()[rows // 2]}


def _smoothed(margin: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """The losses of a right and of a wrong label, each weighted by its share, [pairs] each."""
    return -(1.0 - label_smoothing) * logsigmoid(margin), -label_smoothing * logsigmoid(-margin)


def _log_of_the_rest(logprobs: Tensor) -> Tensor:
    """log(1 - p) of log p."""
    return torch.log(-torch.expm1(logprobs.clamp(max=-2.0**-24)))


def kto(logprobs: Tensor, ref_logprobs: Tensor, rows: Tensor, beta=KTO.beta, desirable_weight=KTO.desirable_weight,
        undesirable_weight=KTO.undesirable_weight, reference_point=KTO.reference_point,
        estimate_kl=KTO.estimate_kl) -> Loss:
    """Kahneman-Tversky optimisation (Ethayarajh et al. 2024, arXiv:2402.01306).

    loss = w_d (1 - sigmoid(beta (g - z))) for a chosen row, w_u (1 - sigmoid(beta (z - g))) for a rejected one, g its
    log-ratio. The two rows of a pair are independent, so weights may balance them. z is the paper's KL(pi || ref), here
    a constant reference_point >= 0: 0 is exact at the start, and later assumes that the policy stays near the
    reference. With estimate_kl the learner gives the paper's estimate as reference_point: max(0, mean of log pi - log
    ref), without gradient, over prompts with the responses of a pair with another prompt, of the whole train batch,
    because one over the micro-batch would make the loss depend on the split; 0 where all have one prompt. At pi = ref
    and z = 0 each row has half its weight.
    """
    chosen, rejected = _log_ratios(logprobs, ref_logprobs, rows)
    good = desirable_weight * torch.sigmoid(beta * (reference_point - chosen))
    bad = undesirable_weight * torch.sigmoid(beta * (rejected - reference_point))
    loss = torch.stack([good, bad], dim=1).flatten()
    found = {"estimated_kl": torch.full_like(logprobs, float(reference_point)).detach()} if estimate_kl else {}
    return loss[rows], _statistics(chosen, rejected, beta, rows) | found


def _log_ratios(logprobs: Tensor, ref_logprobs: Tensor, rows: Tensor,
                normalized: bool = False) -> tuple[Tensor, Tensor]:
    """log(pi / ref) of the chosen and of the rejected responses, [pairs] each. normalized: means over their tokens."""
    sums = row_vector(logprobs - ref_logprobs, rows)
    assert len(sums) % 2 == 0, "a pair was split over micro-batches, or a rejected response has no action token"
    if normalized:
        sums = sums / row_vector(torch.ones_like(logprobs), rows).clamp(min=1.0)
    return sums[0::2], sums[1::2]


def _statistics(chosen: Tensor, rejected: Tensor, beta: float, rows: Tensor) -> dict[str, Tensor]:
    """chosen_reward and rejected_reward (beta log-ratio; beta mean log-prob without a reference), accuracy (1 where the
    chosen's is higher), [N]."""
    values = {"chosen_reward": beta * chosen, "rejected_reward": beta * rejected, "accuracy": (chosen > rejected)}
    return {name: value.detach().to(chosen.dtype)[rows // 2] for name, value in values.items()}
