"""Direct preference optimisation, with the losses that TRL has by these names: one, or a weighted sum of several."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from ouroboros.operators.losses.preference import OfPairs, log_ratios, pair_statistics, smoothed
from ouroboros.operators.losses.ratio import MOST, Losses, row_vector
from ouroboros.pipeline.store.lazy import Tensor, torch

Form = Literal["sigmoid", "hinge", "robust", "ipo", "exo_pair", "nca_pair", "bco_pair", "sppo_hard", "aot",
               "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"]
SMOOTHED = ("sigmoid", "robust", "exo_pair", "aot", "aot_unpaired")
ORDERED = ("aot", "aot_unpaired")


@dataclass(frozen=True)
class Pairs:
    """What the losses read, [pairs] each: chosen and rejected are beta log(pi / ref) of the responses.

    mean_margin: the difference of the log ratios' means over tokens. partners: what `Dpo.choose` found for chosen and
    for rejected ones. likelihood: -log pi of the chosen response over the mean length of the batch's.
    """

    chosen: Tensor
    rejected: Tensor
    mean_margin: Tensor
    partners: tuple[Tensor, Tensor] | None
    likelihood: Tensor
    beta: float
    smoothing: float
    tau: float

    @property
    def margin(self) -> Tensor:
        return self.chosen - self.rejected


class Dpo(OfPairs):
    """Direct preference optimisation, on pairs.

    Rafailov et al. 2023, arXiv:2305.18290, eq. 7. c, r = beta log(pi / ref) of the chosen and the rejected response,
    m = c - r, s = label_smoothing, l(x) = -log sigmoid(x). loss_type is one of these, or a list, whose sum by
    loss_weights is the loss (MPO, Wang et al. 2024, arXiv:2411.10442):

    sigmoid: (1 - s) l(m) + s l(-m), s the share of wrong labels (conservative DPO, Mitchell 2023). robust: ((1 - s)
    l(m) - s l(-m)) / (1 - 2 s), whose mean over labels flipped with chance s is that over true ones (arXiv:2403.00409).
    hinge: max(0, 1 - m) (SLiC, arXiv:2305.10425). ipo: (d - 1 / (2 beta))^2, d the difference of the log ratios' means
    over tokens (arXiv:2310.12036); sigmoid_norm: l(beta d). exo_pair: KL of (sigmoid(m), sigmoid(-m)) from (1 - s, s)
    (arXiv:2402.00856, eq. 16). nca_pair: l(c) + l(-c) / 2 + l(-r) / 2 (arXiv:2402.05369). bco_pair: l(c) + l(-r)
    (arXiv:2404.04656, without its shift). sppo_hard: ((c - 1/2)^2 + (r + 1/2)^2) / beta^2 (arXiv:2405.00675). aot,
    aot_unpaired: (1 - s) l(x) + s l(-x) of each x, the kth smallest log pi ratio of chosen to rejected less the kth of
    ref's, or the kth smallest c less the kth r, over the train batch (arXiv:2406.05882). apo_zero: sigmoid(-c) +
    sigmoid(r); apo_down: sigmoid(c) + sigmoid(-m) (arXiv:2408.06266). discopop: (1 - g) l(m) + g exp(-m), g =
    sigmoid(m / discopop_tau), -m at most 20 in exp (arXiv:2406.08414). sft: -log pi of the chosen responses, the mean
    over their tokens in the train batch.

    sigmoid and robust assume preferences that follow the Bradley-Terry model. At pi = ref: log 2, hinge 1; two
    identical responses have no gradient in what reads m alone.
    """
    beta: float = Field(0.1, gt=0, description="strength of the regularisation towards the reference")
    loss_type: list[Form] = Field(["sigmoid"], min_length=1, description=(
        "function of the pair, by TRL's name, or a list of them"))
    loss_weights: list[float] | None = Field(None, validate_default=True, description=(
        "factor of each of loss_type, in its order; null: 1 each"))
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, validate_default=True, description=(
        "share of pairs whose preference is wrong; at 0.5 there is none to learn"))
    discopop_tau: float = Field(0.05, gt=0, description="temperature of the mixture of discopop")

    @field_validator("loss_type", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("loss_type")
    @classmethod
    def _orders_once(cls, value: list[str]) -> list[str]:
        if set(ORDERED) <= set(value):
            raise ValueError("aot and aot_unpaired each order the batch; needed one of them")
        return value

    @field_validator("loss_weights")
    @classmethod
    def _for_each(cls, value: list[float] | None, info: ValidationInfo) -> list[float] | None:
        if value is not None and len(value) != (count := len(info.data.get("loss_type", value))):
            raise ValueError(f"needed one for each of loss_type, {count}")
        return value

    @field_validator("label_smoothing")
    @classmethod
    def _of_its_type(cls, value: float, info: ValidationInfo) -> float:
        kinds = info.data.get("loss_type", SMOOTHED[:1])  # absent where it is wrong
        if value and not set(SMOOTHED) & set(kinds):
            raise ValueError(f"loss_type={', '.join(kinds)} has none; needed 0")
        if not value and "exo_pair" in kinds:
            raise ValueError("exo_pair compares with the logarithm of it; needed more than 0, such as 1e-3")
        return value

    @property
    def chooses_tokens(self) -> bool:
        return bool(set(ORDERED) & set(self.loss_type))

    def __call__(self, logprobs: Tensor, ref_logprobs: Tensor, rows: Tensor, chosen_tokens: Tensor,
                 chosen: Tensor | None = None) -> Losses:
        winners, losers = log_ratios(logprobs, ref_logprobs, rows)
        means = log_ratios(logprobs, ref_logprobs, rows, normalized=True)
        likelihood = -row_vector(logprobs / chosen_tokens, rows)[0::2]
        partners = None
        if self.chooses_tokens:
            chosen = self.choose(logprobs, ref_logprobs, rows) if chosen is None else chosen
            of_rows = chosen.new_zeros(2 * len(winners)).index_copy(0, rows, chosen)
            partners = of_rows[0::2], of_rows[1::2]
        pairs = Pairs(self.beta * winners, self.beta * losers, means[0] - means[1], partners, likelihood, self.beta,
                      self.label_smoothing, self.discopop_tau)
        weights = self.loss_weights or [1.0] * len(self.loss_type)
        loss = sum(weight * FORMS[name](pairs) for name, weight in zip(self.loss_type, weights, strict=True))
        return loss[rows // 2], pair_statistics(winners, losers, self.beta, rows)

    def choose(self, logprobs: Tensor, ref_logprobs: Tensor, rows: Tensor) -> Tensor:
        """[N] what the token's pair (aot) or response (aot_unpaired) is compared with over all given pairs.

        It is the value of the same rank on the other side, beta log (pi / ref) of a response; for aot beta times the
        reference's log ratio of that rank less the pair's.
        """
        ours, theirs = (row_vector(values.detach(), rows) for values in (logprobs, ref_logprobs))
        if "aot" in self.loss_type:
            of_policy, of_reference = ours[0::2] - ours[1::2], theirs[0::2] - theirs[1::2]
            partners = (_of_rank(of_policy, of_reference) - of_reference).repeat_interleave(2)
        else:
            winners, losers = (ours - theirs)[0::2], (ours - theirs)[1::2]
            partners = torch.stack([_of_rank(winners, losers), _of_rank(losers, winners)], dim=1).flatten()
        return self.beta * partners[rows]


def _of_rank(own: Tensor, others: Tensor) -> Tensor:
    """The value of `others` that has the rank of each of `own`."""
    return torch.empty_like(own).index_copy(0, own.argsort(stable=True), others.sort().values)


def _l(x: Tensor) -> Tensor:
    return -torch.nn.functional.logsigmoid(x)


def _smooth(pairs: Pairs, x: Tensor) -> Tensor:
    return sum(smoothed(x, pairs.smoothing))


def _robust(p: Pairs) -> Tensor:
    right, wrong = smoothed(p.margin, p.smoothing)
    return (right - wrong) / (1.0 - 2.0 * p.smoothing)


def _exo_pair(p: Pairs) -> Tensor:
    def part(x: Tensor, share: float) -> Tensor:
        return torch.sigmoid(x) * (-_l(x) - math.log(share))

    return part(p.margin, 1.0 - p.smoothing) + part(-p.margin, p.smoothing)


def _aot_unpaired(p: Pairs) -> Tensor:
    """The two responses that are compared may lie in two micro-batches: each has half of the value and its gradient."""
    both = _smooth(p, p.chosen - p.partners[0]) + _smooth(p, p.partners[1] - p.rejected)
    return both - both.detach() / 2.0


def _discopop(p: Pairs) -> Tensor:
    share = torch.sigmoid(p.margin / p.tau)
    return _l(p.margin) * (1.0 - share) + (-p.margin).clamp(max=MOST).exp() * share


FORMS: dict[str, Callable[[Pairs], Tensor]] = {
    "sigmoid": lambda p: _smooth(p, p.margin),
    "hinge": lambda p: torch.relu(1.0 - p.margin),
    "robust": _robust,
    "ipo": lambda p: (p.mean_margin - 0.5 / p.beta).square(),
    "exo_pair": _exo_pair,
    "nca_pair": lambda p: _l(p.chosen) + (_l(-p.chosen) + _l(-p.rejected)) / 2.0,
    "bco_pair": lambda p: _l(p.chosen) + _l(-p.rejected),
    "sppo_hard": lambda p: ((p.chosen - 0.5).square() + (p.rejected + 0.5).square()) / p.beta**2,
    "aot": lambda p: _smooth(p, p.margin - p.partners[0]),
    "aot_unpaired": _aot_unpaired,
    "apo_zero": lambda p: torch.sigmoid(-p.chosen) + torch.sigmoid(p.rejected),
    "apo_down": lambda p: torch.sigmoid(p.chosen) + torch.sigmoid(-p.margin),
    "discopop": _discopop,
    "sft": lambda p: p.likelihood,
    "sigmoid_norm": lambda p: _l(p.beta * p.mean_margin),
}
