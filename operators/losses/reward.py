"""The loss of a reward model, on scores of whole responses: rows 2k and 2k + 1 are pair k, the chosen one first."""

from __future__ import annotations

from pydantic import Field

from ouroboros.operators.losses.preference import OfPairs
from ouroboros.operators.losses.ratio import Losses, row_vector
from ouroboros.pipeline.store.lazy import Tensor, torch


class RewardModel(OfPairs):
    """Bradley-Terry likelihood of preferences, of scores: what trains a reward model.

    Bradley & Terry 1952; Ouyang et al. 2022, arXiv:2203.02155.
    loss = -log sigmoid(r_c - r_r - m) + center_rewards_coefficient (r_c + r_r)^2, r the scores of the chosen and the
    rejected response, [N] one a row. m: by how much the chosen one is to be better, 0 without a column (Touvron et al.
    2023, Llama 2, arXiv:2307.09288, eq. 2). The likelihood leaves a constant of all scores open; the second term draws
    their mean to 0 (Eisenstein et al. 2023, arXiv:2312.09244, eq. 2). Assumes that one number orders the responses to a
    prompt. Equal scores without a margin: log 2; two identical responses move the scores to 0 alone.
    """
    scores_responses = True
    center_rewards_coefficient: float = Field(0.0, ge=0, description=(
        "weight of the squared sum of a pair's scores, which draws their mean to 0 (TRL recommends 0.01)"))

    def __call__(self, scores: Tensor, margin: Tensor, rows: Tensor) -> Losses:
        values = row_vector(scores, rows)
        assert len(values) % 2 == 0, "a pair was split over micro-batches"
        chosen, rejected = values[0::2], values[1::2]
        loss = -torch.nn.functional.logsigmoid(chosen - rejected - row_vector(margin, rows)[0::2])
        loss = loss + self.center_rewards_coefficient * (chosen + rejected).square()
        found = {"chosen_reward": chosen, "rejected_reward": rejected, "accuracy": ranked(chosen, rejected)}
        return loss[rows // 2], {name: value.detach()[rows // 2] for name, value in found.items()}


def ranked(chosen: Tensor, rejected: Tensor) -> Tensor:
    """1 where the chosen response has the higher score, 1/2 where both are equal, else 0, [pairs]."""
    return ((chosen > rejected).to(chosen.dtype) + (chosen >= rejected).to(chosen.dtype)) / 2
