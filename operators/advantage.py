"""Advantages by name: table operations from a batch to one advantage per response.

function(batch: pyarrow.Table, **arguments) -> pyarrow.Table with the columns `experience_id` and `advantage`, float64
for the whole response or list<float64> [R] for each of its tokens, and for a critic `returns`, list<float64> [R].
`batch` contains the usable rows of the explorer steps that a train batch is cut from. A row missing from the result is
not trained on; one that occurs twice is trained on twice. Functions read all their inputs from the batch; an absent or
null column is a DataError, and so is a reward that is not finite.
"""

from ouroboros.operators.advantages import components, group, steps, token

ADVANTAGES = {
    "asymre": group.asymre,
    "dr_grpo": group.dr_grpo,
    "gdpo": components.gdpo,
    "gigpo": steps.gigpo,
    "grpo": group.grpo,
    "grpo_passk": group.grpo_passk,
    "jsd": token.jsd,
    "maxrl": group.maxrl,
    "on_policy_distill": token.on_policy_distill,
    "opmd": group.opmd,
    "ppo": token.ppo,
    "raft": group.raft,
    "rec": group.rec,
    "reinforce": group.reinforce,
    "reinforceplusplus": token.reinforceplusplus,
    "reinforceplusplus_baseline": token.reinforceplusplus_baseline,
    "remax": token.remax,
    "rloo": group.rloo,
    "step_wise_grpo": steps.step_wise_grpo,
}
