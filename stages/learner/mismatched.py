"""The KL of policy and reference that kto compares with, estimated over a train batch (Ethayarajh et al. 2024).

Each prompt of the batch with the two responses of the next pair that has another prompt, after the last one the first:
responses that are likely neither because they were chosen for this prompt, nor because they were rejected.
"""

import numpy as np

from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.engine.batch import Row


def estimated_kl(actor: Actor, rows: list[Row]) -> float | None:
    """max(0, mean of log policy - log reference of the mismatched responses), nats, under the current weights; None
    where all pairs have one prompt.

    rows: 2k and 2k + 1 are pair k. Two forwards of all of them. Collective.
    """
    if not (others := mismatched(rows)):
        return None
    policy, reference = actor.score_rows(others), actor.reference_logprobs(others)
    gaps = [float(ours.sum(dtype=np.float64) - theirs.sum(dtype=np.float64))
            for ours, theirs in zip(policy, reference, strict=True)]
    return max(sum(gaps) / len(gaps), 0.0)


def mismatched(rows: list[Row]) -> list[Row]:
    """The prompt of each row with the response of the same kind of the next pair with another prompt; none where all
    pairs have one prompt."""
    prompts = [row.tokens[: row.prompt_length] for row in rows]
    others = [next((rows[at % len(rows)] for at in range(place + 2, place + len(rows), 2)
                    if prompts[at % len(rows)] != prompt), None) for place, prompt in enumerate(prompts)]
    return [Row(f"{row.id}/mismatched", prompt + other.tokens[other.prompt_length :], row.prompt_length, other.mask)
            for row, prompt, other in zip(rows, prompts, others, strict=True) if other]
