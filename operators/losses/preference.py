"""Losses on preference pairs: rows 2k and 2k + 1 of a micro-batch are pair k, the chosen one first.

Every token has the loss of its pair (kto: of its row), so that the seq-mean-token-mean average is exactly the mean over
pairs. The log-ratio of a response is the sum over its action tokens.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from operators.losses.ratio import row_vector
from pipeline.settings.arguments.losses import Dpo, Ipo, Kto

DPO, IPO, KTO = Dpo(), Ipo(), Kto()

Loss = tuple[Tensor, dict[str, Tensor]]


def dpo(logprobs: Tensor, ref_logprobs: Tensor, rows: Tensor, beta=DPO.beta,
        label_smoothing=DPO.label_smoothing) -> Loss:
    """Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290, eq. 7).

    D = log(pi / ref) of chosen - of rejected; loss = -(1 - s) log sigmoid(beta D) - s log sigmoid(-beta D), with s =
    label_smoothing <= 1/2 the share of wrong labels (conservative DPO, Mitchell 2023). Assumes preferences that follow
    the Bradley-Terry model. At pi = ref: log 2; two identical responses have no gradient.
    """
    chosen, rejected = _log_ratios(logprobs, ref_logprobs, rows)
    margin = beta * (chosen - rejected)
    loss = -(1.0 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)
    return loss[rows // 2], _statistics(chosen, rejected, beta, rows)


def ipo(logprobs: Tensor, ref_logprobs: Tensor, rows: Tensor, beta=IPO.beta) -> Loss:
    """Identity preference optimisation (Azar et al. 2023, arXiv:2310.12036): loss = (D - 1 / (2 beta))^2.

    Eq. 17. D as in dpo, a sum over tokens, not a mean; beta is the paper's tau. Assumes no preference model: the margin
    has a target, so deterministic preferences do not drive the policy to extremes. At pi = ref: 1 / (4 beta^2); at the
    target 0; two identical responses have no gradient.
    """
    chosen, rejected = _log_ratios(logprobs, ref_logprobs, rows)
    loss = (chosen - rejected - 1.0 / (2.0 * beta)).square()
    return loss[rows // 2], _statistics(chosen, rejected, beta, rows)


def kto(logprobs: Tensor, ref_logprobs: Tensor, rows: Tensor, beta=KTO.beta, desirable_weight=KTO.desirable_weight,
        undesirable_weight=KTO.undesirable_weight, reference_point=KTO.reference_point) -> Loss:
    """Kahneman-Tversky optimisation (Ethayarajh et al. 2024, arXiv:2402.01306).

    loss = w_d (1 - sigmoid(beta (g - z))) for a chosen row, w_u (1 - sigmoid(beta (z - g))) for a rejected one, g its
    log-ratio. The two rows of a pair are independent, so weights may balance them. z is the paper's KL(pi || ref), here
    a constant reference_point >= 0, because an estimate over the micro-batch would make the loss depend on the split. 0
    is exact at the start, and later assumes that the policy stays near the reference. At pi = ref and z = 0 each row
    has half its weight.
    """
    chosen, rejected = _log_ratios(logprobs, ref_logprobs, rows)
    good = desirable_weight * torch.sigmoid(beta * (reference_point - chosen))
    bad = undesirable_weight * torch.sigmoid(beta * (rejected - reference_point))
    loss = torch.stack([good, bad], dim=1).flatten()
    return loss[rows], _statistics(chosen, rejected, beta, rows)


def _log_ratios(logprobs: Tensor, ref_logprobs: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """log(pi / ref) of the chosen and of the rejected responses, [pairs] each."""
    sums = row_vector(logprobs - ref_logprobs, rows)
    assert len(sums) % 2 == 0, "a pair was split over micro-batches, or a rejected response has no action token"
    return sums[0::2], sums[1::2]


def _statistics(chosen: Tensor, rejected: Tensor, beta: float, rows: Tensor) -> dict[str, Tensor]:
    """chosen_reward and rejected_reward (beta log-ratio), accuracy (1 where the chosen's is higher), [N]."""
    values = {"chosen_reward": beta * chosen, "rejected_reward": beta * rejected, "accuracy": (chosen > rejected)}
    return {name: value.detach().to(chosen.dtype)[rows // 2] for name, value in values.items()}
