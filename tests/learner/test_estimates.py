"""What advantages are given of models, by an actor whose answers are known."""

from types import SimpleNamespace

import numpy as np
import pytest

from ouroboros.stages.learner.estimates import Estimates


class Actor:
    """Log-probs -1, -2, ... of the action tokens, and half as much entropy; counts its forwards."""

    def __init__(self):
        self.forwards = 0

    def score_rows(self, rows):
        self.forwards += 1
        return [-np.arange(1.0, 1 + sum(row.mask)) for row in rows]

    def measure(self, rows):
        return [np.stack([values, -values / 2], axis=1) for values in self.score_rows(rows)]


def row(mask):
    def spread(values):
        made = np.zeros(len(mask))
        made[np.flatnonzero(mask)] = values
        return made

    return SimpleNamespace(mask=mask, columns={"old_logprobs": "the rollout's"}, spread=spread)


@pytest.mark.parametrize(("recompute", "entropies", "made"), [
    (False, False, {"old_logprobs": "the rollout's"}), (True, False, {"old_logprobs": [-1, 0, -2]}),
    (False, True, {"old_logprobs": "the rollout's", "entropies": [0.5, 0, 1]}),
    (True, True, {"old_logprobs": [-1, 0, -2], "entropies": [0.5, 0, 1]})])
def test_log_probs_and_entropies_are_of_one_forward_and_at_action_tokens(recompute, entropies, made):
    actor, rows = Actor(), [row([1, 0, 1])]
    estimates = Estimates(actor, recompute=recompute, entropies=entropies)
    estimates.add(rows)
    assert estimates.needed == (recompute or entropies) == bool(actor.forwards)
    assert actor.forwards <= 1
    assert {name: values if isinstance(values, str) else values.tolist()
            for name, values in rows[0].columns.items()} == made
