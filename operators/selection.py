"""Tokens that a loss selects over the whole batch of an optimizer step, before it is cut into micro-batches.

function(columns..., **arguments) -> [N], over all action tokens of the rows; columns are those of losses
(operators/losses) and `entropy`. A loss that chooses for itself has such a function as its method `choose`. The learner
calls them with a forward for them alone, with the weights just before the update, so that which tokens teach depends
neither on micro-batches nor on ranks.
"""

import torch
from torch import Tensor


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
