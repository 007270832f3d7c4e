"""Which log-probs are the old ones, and the weights between engine and trainer: `algorithm.rollout_correction` of veRL.

veRL scores the rollouts of a step once, by the weights that sampled them, and takes several optimizer steps; with
bypass_old_logprobs=false we score them before each optimizer step. The two are the same where there is one.
"""

from pipeline.bridges.verl_source import ACTOR, ROLLOUT, Verl

CAP = f"{ACTOR}.tis_imp_ratio_cap"
CORRECTION, OURS, OLD = "algorithm.rollout_correction", "algorithm.rollout_correction", "algorithm.bypass_old_logprobs"
LEVEL, THRESHOLD, LOSS = f"{CORRECTION}.rollout_is", f"{CORRECTION}.rollout_is_threshold", f"{CORRECTION}.loss_type"
BYPASS = (f"{CORRECTION}.bypass_mode", f"{CORRECTION}.bypass_old_logprob_for_rollout")
LEVELS = ("token", "sequence")
SWITCHES = ("true", "false", "none")


def old_logprobs(verl: Verl) -> None:
    """Weights by the cap, or by rollout_is; without either only the question whose log-probs are the old ones."""
    bypass = next((key for key in BYPASS if key in verl.values or key in verl.unknown), BYPASS[0])
    cap = verl.value(CAP)
    is_capped = isinstance(cap, (int, float)) and cap > 0
    if not is_capped:
        verl.leave(CAP, "off there too: no correction unless algorithm.rollout_correction says so.",
                   idle=CAP not in verl.unknown)
    if bypass in verl.unknown or LEVEL in verl.unknown:
        for key, to in ((bypass, OLD), (LEVEL, f"{OURS}.level"), (THRESHOLD, f"{OURS}.threshold")):
            verl.say(key, to, verl.value(key))
        return
    if str(verl.value(bypass)).lower() not in SWITCHES:
        verl.leave(bypass, "needed true or false; veRL's default, false, was taken.")
    elif verl.is_on(bypass):
        _bypassed(verl, bypass)
        return
    verl.leave(LOSS, "means nothing without bypass_mode=True.", idle=True)
    if is_capped:
        verl.say(CAP, f"{OURS}.threshold", cap)
        verl.choose(f"{OURS}.level", "token", CAP)
        _scored_again(verl, bypass, CAP)
    elif verl.value(LEVEL) in LEVELS:
        verl.say(LEVEL, f"{OURS}.level", verl.value(LEVEL))
        verl.say(THRESHOLD, f"{OURS}.threshold", verl.value(THRESHOLD))
        _scored_again(verl, bypass, LEVEL)
    else:
        _without_weights(verl, bypass)


def _bypassed(verl: Verl, bypass: str) -> None:
    """The rollout's log-probs are the old ones, so that the ratio of the loss holds the weight already."""
    verl.say(bypass, OLD, True)
    if verl.value(LOSS, "ppo_clip") == "ppo_clip":
        verl.leave(LOSS, "always so.", idle=True)
        reason = "means nothing with bypass_mode=True: the loss takes its ratio to the rollout itself."
        verl.leave(LEVEL, reason, idle=True)
        verl.leave(THRESHOLD, reason, idle=True)
    else:
        verl.leave(LOSS, "a loss of weights that are not clipped: choose algorithm.policy_loss_fn.")


def _scored_again(verl: Verl, bypass: str, by: str) -> None:
    if bypass not in verl.done:
        verl.say(bypass, OLD, False)
    verl.choose(OLD, False, f"{by}: the trainer's own log-probs are the old ones")
    if verl.interval != 1:
        verl.made.chosen.append(f"{OLD}=false: the weights of {by} need it. They are taken before each optimizer step, "
                                "so that they hold what the policy has moved since it sampled, too; veRL's are those "
                                f"of the weights that sampled.{_steps(verl)}")


def _without_weights(verl: Verl, bypass: str) -> None:
    if verl.value(LEVEL) is None:
        verl.leave(THRESHOLD, "means nothing without rollout_is.", idle=True)
        verl.fold(LEVEL, f"{OURS}.level")
    once = verl.interval == 1
    if bypass not in verl.done:
        verl.say(bypass, OLD, not once, "" if once else ", which scores once for several optimizer steps", default=once)
    if once:
        verl.choose(OLD, False, "veRL's default")
        verl.choose(f"{OURS}.level", "none", "no weights between engine and trainer", of=(LEVEL,))
    else:
        verl.made.chosen.append(
            f"{OLD}=true: veRL scores the rollouts of a step again, once, by the weights that sampled them. Here false "
            "would score them before each optimizer step, and leave no ratio to clip; the rollouts' own log-probs are "
            f"those of the weights that sampled.{_steps(verl)}")


def _steps(verl: Verl) -> str:
    return f" A step of veRL has {verl.interval} optimizer steps here." if verl.interval else ""


def greedy(verl: Verl) -> None:
    """`do_sample=False` would train on greedy rollouts, all of a group alike."""
    key = f"{ROLLOUT}.do_sample"
    if key in verl.values and not verl.is_on(key):
        verl.leave(key, "greedy rollouts there, all of a group alike; here rollouts to train on are sampled, by "
                        "model.temperature.")
