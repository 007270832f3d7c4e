"""Tokens that a loss selects over the whole batch of an optimizer step, before it is cut into micro-batches.

function(columns..., **arguments) -> [N], over all action tokens of the rows; columns are those of losses
(operators/loss.py) and `entropy`. The learner makes them by a forward of their own, with the weights just before the
update, so that which tokens teach depends neither on micro-batches nor on ranks.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ouroboros.operators.losses import clipped, covariance


def of_high_entropy(entropy: Tensor, quantile: float) -> Tensor:
    """[N] true where H is at least its 1 - quantile quantile, interpolated (Wang et al. 2025, arXiv:2506.01939).

    quantile: share of tokens that teach; 0.2 is the paper's, under the name that TRL has for it. They are where the
    policy decides (forking tokens); averages still divide by all tokens. Assumes that entropies of all rows compare.
    With 1, or equal entropies, all tokens teach.
    """
    if not len(entropy):
        return torch.ones(0, dtype=torch.bool)
    ordered = entropy.detach().double().sort().values
    place = (1.0 - quantile) * (len(ordered) - 1)
    low, share = int(place), place - int(place)
    bound = ordered[low] if not share else ordered[low] + share * (ordered[low + 1] - ordered[low])
    return entropy.detach().double() >= bound


# loss -> what chooses its tokens; the result is its column `chosen`
SELECTIONS: dict[str, Callable[..., Tensor]] = {
    "clip_cov": covariance.drawn,
    "kl_cov": covariance.highest,
    "m2po": clipped.within_second_moment,
}
