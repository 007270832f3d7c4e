"""Contrastive preference optimisation: DPO without a reference, and the likelihood of the chosen response."""

from __future__ import annotations

from pydantic import Field

from ouroboros.operators.losses.preference import OfPairs, log_ratios, pair_statistics, smoothed
from ouroboros.operators.losses.ratio import Losses, row_vector
from ouroboros.pipeline.store.lazy import Tensor, torch


class Cpo(OfPairs):
    """Contrastive preference optimisation, on pairs, without a reference: their margin and the likelihood.

    Xu et al. 2024, arXiv:2401.08417, eq. 5 and 6. m = beta (log pi of the chosen - of the rejected response); loss =
    -(1 - s) log sigmoid(m) - s log sigmoid(-m) + cpo_alpha times the mean of -log pi over the chosen responses' tokens
    in the train batch, s = label_smoothing, as the authors' program and TRL's CPO have it but for the prompt, whose
    tokens theirs adds to that mean. Assumes chosen responses that are worth imitating. Two identical responses leave
    the gradient of the likelihood.
    """
    beta: float = Field(0.1, gt=0, description="factor of log-probs")
    cpo_alpha: float = Field(1.0, ge=0, description="weight of the likelihood of chosen responses")
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="share of pairs whose preference is wrong")

    def __call__(self, logprobs: Tensor, rows: Tensor, chosen_tokens: Tensor) -> Losses:
        chosen, rejected = log_ratios(logprobs, torch.zeros_like(logprobs), rows)
        right, wrong = smoothed(self.beta * (chosen - rejected), self.label_smoothing)
        likelihood = -row_vector(logprobs / chosen_tokens, rows)[0::2]
        loss = right + wrong + self.cpo_alpha * likelihood
        return loss[rows // 2], pair_statistics(chosen, rejected, self.beta, rows) | {
            "sft_loss": likelihood.detach()[rows // 2]}
