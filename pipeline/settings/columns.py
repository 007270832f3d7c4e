"""Inputs of algorithm components: required and available columns for user-defined functions.

A loss, a KL estimator and an entropy loss are called by keyword: a parameter without a default names a column, one with
a default is an argument. An advantage function is called with the batch. The available columns depend on the training
data.
"""

from collections.abc import Sequence
from functools import partial

from ouroboros.pipeline.settings.algorithm import Algorithm
from ouroboros.pipeline.store.errors import Problem, nearest

OF_THE_FORWARD = {
    "logprobs": "log-prob of each token under the policy, with gradient",
    "prox_logprobs": "the same without gradient: the policy before this step",
    "entropy": "of the policy's next-token distribution, over what truncated sampling keeps, nats",
    "rows": "index of the token's row in the micro-batch, int64; rows are never split",
    "step": "the optimizer step, 0-d, from 1",
}
OF_SCORES = {
    "scores": "score of each response, one entry a row, with gradient",
    "margin": "by how much the chosen response of the pair is to be better; 0 without format.margin_key",
    "rows": OF_THE_FORWARD["rows"],
}
OF_THE_REFERENCE = {"ref_logprobs": "log-prob under the reference, the model that the stage began with"}
OF_ROLLOUTS = {
    "advantages": "what advantage_fn gives the token",
    "old_logprobs": "log-prob under the policy that sampled: the rollout's, or with bypass_old_logprobs=false the "
                    "trainer's before the step, whose ratio is 1",
    "rollout_logprobs": "log-prob that the rollout engine gave it",
}
OF_PAIRS = {"chosen_tokens": "mean number of action tokens of the batch's chosen responses"}
OF_THE_CRITIC = {"values": "the critic's, before the token", "returns": "what the critic is trained towards"}
OF_A_MIX = {"is_expert": "whether an expert gave the row, bool; rollouts and its rows are averaged apart"}
OF_AN_ESTIMATE = ("logprobs", "ref_logprobs", "old_logprobs")


def columns(part: str, algorithm: Algorithm) -> dict[str, str]:
    """Maps available columns of a function for `part` (policy_loss_fn, ...) to meanings; each is [N], one entry per
    action token.

    algorithm: the filled section. On pairs, rows 2k and 2k + 1 are the chosen and the rejected response of a pair.
    """
    if algorithm.scores_responses:
        return OF_SCORES
    given = OF_THE_FORWARD | OF_THE_REFERENCE
    if algorithm.on_pairs:
        given |= OF_PAIRS
    else:
        given |= OF_ROLLOUTS | (OF_THE_CRITIC if algorithm.has_critic else {})
        given |= OF_A_MIX if algorithm.sample_strategy == "mix" else {}
    if part in ("kl_loss_fn", "kl_penalty_fn"):
        return {name: meaning for name, meaning in given.items() if name in OF_AN_ESTIMATE}
    return given


def ratio_column(algorithm: Algorithm, required: Sequence[str]) -> str | None:
    """Returns the log-probs in the denominator of the loss's ratio; None for a loss without a ratio.

    rollout_logprobs: the engine's. old_logprobs: of the policy just before the update, so that the ratio is 1.
    required: the columns that the loss takes. PPO's fallback_to_policy_gradient replaces the ratio by 1.
    """
    if "rollout_logprobs" in required:
        return "rollout_logprobs"
    if "old_logprobs" not in required or _falls_back(algorithm):
        return None
    return "rollout_logprobs" if algorithm.bypass_old_logprobs else "old_logprobs"


def _falls_back(algorithm: Algorithm) -> bool:
    name = "fallback_to_policy_gradient"
    return name in algorithm.loss.model_fields and bool(algorithm.policy_loss_fn_args.get(name))


STALENESS_MASKS = ("enable_sequence_masking", "enable_mask_clip")  # arguments of losses that mask tokens by the ratio


def ratio_problems(algorithm: Algorithm, required: Sequence[str], several: bool = False) -> list[Problem]:
    """Reports a rollout correction that the loss's ratio already includes, and masks without effect.

    required: the columns that the loss takes. several: whether a train batch has more than one optimizer step.
    """
    level, loss, ratio = (algorithm.rollout_correction.level, algorithm.policy_loss_fn,
                          ratio_column(algorithm, required))
    problems = []
    if ratio == "rollout_logprobs" and level not in (None, "none"):
        way_out = "" if "rollout_logprobs" in required else "bypass_old_logprobs=false, or "
        problems.append(Problem("algorithm.rollout_correction.level", f"with policy_loss_fn={loss}: its ratio is to "
                                "the rollout's log-probs, and a second weight would count the same gap twice.",
                                f"Set {way_out}level=none.", found=level))
    cause = "fallback_to_policy_gradient=true" if _falls_back(algorithm) else "algorithm.bypass_old_logprobs=false"
    problems += [Problem(f"algorithm.policy_loss_fn_args.{mask}", f"with {cause}: the mask compares the policy with "
                         "itself just before its only update of the batch, so the ratio is 1 and nothing is ever "
                         f"masked.", f"Set {cause.partition('=')[0]}={'false' if _falls_back(algorithm) else 'true'}, "
                         f"or {mask}=false.", found=True)
                 for mask in STALENESS_MASKS
                 if ratio != "rollout_logprobs" and not (several and ratio) and algorithm.policy_loss_fn_args.get(mask)]
    return problems


def unweighed_steps(c, advantage) -> list[Problem]:
    """Reports weights of components under an advantage that reads what single turns earned, which has no components.

    c: the settings of a stage. advantage: what declares whether it does; None: unknown.
    """
    weights = c.algorithm.reward_weights
    if not (weights and c.kind.learns_from_rollouts and advantage and advantage.reads_steps):
        return []
    return [Problem("algorithm.reward_weights", f"with advantage_fn={c.algorithm.advantage_fn}, which reads "
                    "step_reward: what a turn earned by itself has no components to weigh.", "Set {}, or choose "
                    "another advantage.", found=weights)]


def wrong_parameters(part: str, required: Sequence[str], algorithm: Algorithm) -> list[Problem]:
    """Lists problems with the parameters of the user's function for `part`.

    required: names of its parameters without a default, `**` for one that takes all.
    """
    wrong = partial(Problem, f"algorithm.{part}", found=getattr(algorithm, part))
    if part == "advantage_fn":
        if len(required) == 1 and not required[0].startswith("*"):
            return []
        return [wrong(f"has {len(required)} parameters without a default ({', '.join(required) or 'none'}); needed "
                      "one, the batch.", "An argument of your own needs a default.")]
    if "**" in required:
        return [wrong("takes any keyword (**), and columns are passed by the names of parameters; needed a parameter "
                      "without a default for each column that it reads.")]
    known = columns(part, algorithm)
    problems = [wrong(f"asks for a column '{name}' (a parameter without a default), which does not exist."
                      f"{nearest(name, known)} Known: {', '.join(known)}.", "An argument of your own needs a default.")
                for name in required if name not in known]
    learnt_from = ("scores",) if algorithm.scores_responses else (
        "logprobs", "entropy") if part == "entropy_loss_fn" else ("logprobs",)
    if not set(learnt_from) & set(required):
        problems.append(wrong(f"does not ask for the column {' or '.join(learnt_from)}, which alone carries a "
                              "gradient: nothing would be learnt from it."))
    return problems
