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

    def measure(self, rows, scores=False):
        return [np.stack([values, -values / 2, values / 4][:3 if scores else 2], axis=1)
                for values in self.score_rows(rows)]


def row(mask):
    def spread(values):
        made = np.zeros(len(mask))
        made[np.flatnonzero(mask)] = values
        return made

    return SimpleNamespace(mask=mask, columns={"old_logprobs": "the rollout's"}, spread=spread)


@pytest.mark.parametrize(("asked", "made"), [
    ((), {"old_logprobs": "the rollout's"}), (("old_logprobs",), {"old_logprobs": [-1, 0, -2]}),
    (("entropies",), {"old_logprobs": "the rollout's", "entropies": [0.5, 0, 1]}),
    (("old_logprobs", "entropies"), {"old_logprobs": [-1, 0, -2], "entropies": [0.5, 0, 1]}),
    (("entropies", "mean_scores"), {"old_logprobs": "the rollout's", "entropies": [0.5, 0, 1],
                                    "mean_scores": [-0.25, 0, -0.5]})])
def test_log_probs_and_entropies_are_of_one_forward_and_at_action_tokens(asked, made):
    actor, rows = Actor(), [row([1, 0, 1])]
    estimates = Estimates(actor, asked=frozenset(asked))
    estimates.add(rows)
    assert estimates.needed == bool(asked) == bool(actor.forwards)
    assert actor.forwards <= 1
    assert {name: values if isinstance(values, str) else values.tolist()
            for name, values in rows[0].columns.items()} == made
