"""Policy losses by name: pure functions over flat vectors of action tokens.

Every function takes [N] tensors, one entry per action token of a micro-batch, and returns the loss of each token [N]
and a dict of [N] statistics. Its parameters without a default name the columns that it needs (operators/arguments.py),
the others are user settings. Tokens are weighted elsewhere: the learner multiplies by weights that are fixed over the
whole train batch, so the result depends neither on micro-batches nor on ranks.

Columns: logprobs (with gradient), old_logprobs (the policy that sampled, or with bypass_old_logprobs=false the one
before this update), rollout_logprobs (always the engine's), prox_logprobs (the policy before this update), ref_logprobs
(the reference), advantages, rows (index of the row in the micro-batch, int64; rows are never split), is_expert (bool; a
loss that uses it has demonstrations and rollouts averaged separately, by token_weights_by_kind), step (0-d, the
optimizer step from 1); of a reward model instead scores (with gradient) and margin, one entry a row; of a distillation
top_logprobs (with gradient) and teacher_top_logprobs, [N, K + 1]. A loss that chooses tokens over the whole batch has
an argument `chosen`, which the learner gives it (operators/selection.py): without it the given tokens are the batch.
"""

from typing import Any

from ouroboros.operators.losses import (
    clipped,
    covariance,
    demonstrations,
    distillation,
    divergence,
    mixture,
    preference,
    reward,
    weighted,
)
from ouroboros.pipeline.settings.arguments.base import Arguments
from ouroboros.pipeline.settings.arguments.losses import OF_RESPONSES
from ouroboros.pipeline.settings.arguments.losses import POLICY_LOSSES as ARGUMENTS

POLICY_LOSSES = {
    "cispo": weighted.cispo,
    "clip_cov": covariance.clip_cov,
    "decoupled_ppo": clipped.decoupled_ppo,
    "dpo": preference.dpo,
    "dppo_kl": divergence.dppo_kl,
    "dppo_tv": divergence.dppo_tv,
    "forward_kl_topk": distillation.forward_kl_topk,
    "gmpo": clipped.gmpo,
    "gspo": clipped.gspo,
    "gspo_token": clipped.gspo_token,
    "importance_sampling": clipped.importance_sampling,
    "ipo": preference.ipo,
    "kl_cov": covariance.kl_cov,
    "kto": preference.kto,
    "m2po": clipped.m2po,
    "mix": mixture.mix,
    "mix_chord": mixture.mix_chord,
    "opmd": weighted.opmd,
    "orpo": preference.orpo,
    "ppo": clipped.ppo,
    "rec": weighted.rec,
    "reward_model": reward.reward_model,
    "sapo": clipped.sapo,
    "sft": demonstrations.sft,
    "sft_is": demonstrations.sft_is,
    "sft_phi": demonstrations.sft_phi,
    "simpo": preference.simpo,
    "sppo": clipped.sppo,
    "topr": weighted.topr,
}


def natural_aggregation(name: str, given: dict[str, Any]) -> str:
    """The aggregation of a loss with arguments `given` when algorithm.loss_agg_mode is not set.

    Its model declares it (pipeline/settings/arguments/losses.py); of a user's loss the mean over tokens. rec has that
    over responses where it uses whole ones (clip_mode gspo-one-side): the mean over tokens would weight long ones more.
    """
    if name == "rec" and given.get("clip_mode") == "gspo-one-side":
        return OF_RESPONSES
    return ARGUMENTS.get(name, Arguments).aggregation
