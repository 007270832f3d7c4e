"""A loss whose weight is a smooth function of the whole response's ratio to the policy that sampled it."""

from __future__ import annotations

import math

from pydantic import Field

from ouroboros.operators.losses.ratio import MOST, Losses, log_ratio, row_sum, statistics
from ouroboros.pipeline.settings.arguments.base import Loss
from ouroboros.pipeline.store.lazy import Tensor, torch

LEAST = math.log(1e-8)  # of the log ratio of a response


class Vespo(Loss):
    """Variational sequence-level soft policy optimisation: the weight of a response fades on both sides of ratio 1.

    arXiv:2602.10693 (2026), section 3.4, as TRL's loss_type vespo. loss = -phi A log pi, phi = W^k exp(lambda (1 - W)),
    W = product over the response of pi / pi_sampled, without gradient; k and lambda are vespo_k_pos and
    vespo_lambda_pos where A >= 0, else those of neg. phi is 1 at W = 1, largest at W = k / lambda, and goes to 0 for
    responses that the policy has left (W to 0) and for those that it now prefers much more (W large), in place of a
    clip. The ratio is to the policy that sampled, by the engine's log-probs for any bypass_old_logprobs; a token's log
    ratio counts from -20 to 20, that of a response from log 1e-8 to 20. Averaged over tokens. Assumes that one number
    says how stale a whole response is: long ones move further. At W = 1 it is REINFORCE; A = 0 gives 0. clip_fraction
    counts weights below 1/2.
    """
    vespo_k_pos: float = Field(2.0, ge=0, description="power of the ratio where A >= 0: how fast responses fade that "
                                                      "became unlikely")
    vespo_lambda_pos: float = Field(3.0, ge=0, description="decay where A >= 0: how fast responses fade that became "
                                                           "likely")
    vespo_k_neg: float = Field(3.0, ge=0, description="power of the ratio where A < 0")
    vespo_lambda_neg: float = Field(2.0, ge=0, description="decay where A < 0")

    def __call__(self, logprobs: Tensor, rollout_logprobs: Tensor, advantages: Tensor, rows: Tensor) -> Losses:
        change = row_sum(log_ratio(logprobs.detach(), rollout_logprobs), rows).clamp(LEAST, MOST)
        power, decay = (torch.where(advantages >= 0, above, below) for above, below in (
            (self.vespo_k_pos, self.vespo_k_neg), (self.vespo_lambda_pos, self.vespo_lambda_neg)))
        weight = (power * change - decay * change.expm1()).exp().to(logprobs.dtype)
        loss = -weight * advantages * logprobs
        return loss, statistics(logprobs, rollout_logprobs, weight < 0.5, soft_weight=weight)
