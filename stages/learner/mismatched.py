"""The KL of policy and reference that kto compares with, estimated over a train batch (Ethayarajh et al. 2024).

Each prompt of the batch with the two responses of the next pair, the last one's with those of the first: responses that
are likely neither because they were chosen for this prompt, nor because they were rejected.
"""

import numpy as np

from stages.learner.actor import Actor
from stages.learner.engine.batch import Row


def estimated_kl(actor: Actor, rows: list[Row]) -> float:
    """max(0, mean of log policy - log reference of the mismatched responses), nats, under the current weights.

    rows: 2k and 2k + 1 are pair k, of at least two pairs. Two forwards of all of them. Collective.
    """
    others = mismatched(rows)
    policy, reference = actor.score_rows(others), actor.reference_logprobs(others)
    gaps = [float(ours.sum(dtype=np.float64) - theirs.sum(dtype=np.float64))
            for ours, theirs in zip(policy, reference, strict=True)]
    return max(sum(gaps) / len(gaps), 0.0)


def mismatched(rows: list[Row]) -> list[Row]:
    """The prompt of each row with the response of the row two places on."""
    return [Row(f"{row.id}/mismatched", row.tokens[: row.prompt_length] + other.tokens[other.prompt_length :],
                row.prompt_length, other.mask) for row, other in zip(rows, rows[2:] + rows[:2], strict=True)]
