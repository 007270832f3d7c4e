"""What veRL says of the objective by several keys at once: the algorithm, KL, the clip range."""

from pipeline.bridges import verl_dapo
from pipeline.bridges.verl_source import ACTOR, UNKNOWN, Verl

ESTIMATORS = {"gae": "ppo", "grpo": "grpo", "grpo_vectorized": "grpo", "reinforce_plus_plus": "reinforceplusplus",
              "rloo": "rloo", "rloo_vectorized": "rloo", "remax": "remax"}
# what a name that has no counterpart does, and what comes near it
NEAR = {
    "opo": "a baseline of rewards weighed by lengths; rloo has the mean of the other responses",
    "gpg": "no ratio and no clip; algorithm_type=reinforce comes near",
    "grpo_passk": "the best response of a group alone has an advantage; nothing here comes near",
    "reinforce_plus_plus_baseline": "the mean of the group is subtracted first; reinforceplusplus has no such baseline",
    "optimal_token_baseline": "a baseline for each token; nothing here comes near",
    "tir_optimal_token_baseline": "a baseline for each token; nothing here comes near",
    "clip_cov": "tokens of large covariance are clipped; ppo clips by the ratio alone",
    "kl_cov": "tokens of large covariance have a KL penalty; ppo clips by the ratio alone",
    "geo_mean": "the ratio is the geometric mean over the response, as in gspo, clipped by token",
}
LOSSES = {"vanilla": "ppo", "gspo": "gspo", "cispo": "cispo", "sapo": "sapo"}
KL = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "low_var_kl", "k3": "low_var_kl"}


def algorithm(verl: Verl) -> None:
    """The estimator names the algorithm and its advantage; its arguments go with it."""
    key = "algorithm.adv_estimator"
    estimator = verl.value(key, "gae")
    if estimator is None:
        verl.say(key, "algorithm.algorithm_type", None)
        verl.algorithm_type = UNKNOWN
        return
    verl.algorithm_type = named = ESTIMATORS.get(str(estimator), str(estimator))
    if named == "grpo" and (why := verl_dapo.asked_by(verl)):
        verl.algorithm_type = "dapo"
        verl.made.chosen.append(f"algorithm.algorithm_type=dapo: {why}; its advantage is grpo's.")
    verl.say(key, "algorithm.algorithm_type", verl.algorithm_type, default=True)
    if str(estimator) not in ESTIMATORS:
        verl.made.chosen.append(f"algorithm.algorithm_type={estimator}: no algorithm here is known to be veRL's "
                                f"estimator {estimator}{_near(estimator)}; its name stands in the recipe, so that it "
                                "is not taken for another. Choose one.")
        return
    _advantage(verl, named, f"{key}={estimator}")


def _advantage(verl: Verl, advantage: str, said_by: str) -> None:
    if advantage == "grpo" and not verl.is_on("algorithm.norm_adv_by_std_in_grpo", True):
        verl.say("algorithm.norm_adv_by_std_in_grpo", "algorithm.advantage_fn", "dr_grpo")
    else:
        verl.leave("algorithm.norm_adv_by_std_in_grpo", f"said by the advantage function, {advantage}.", idle=True)
        verl.choose("algorithm.advantage_fn", advantage, said_by, of=("algorithm.adv_estimator",))
    for name, functions in (("gamma", ("ppo", "reinforceplusplus")), ("lam", ("ppo",))):
        if advantage in functions:
            verl.say(f"algorithm.{name}", f"algorithm.advantage_fn_args.{name}", verl.value(f"algorithm.{name}"))
        else:
            verl.leave(f"algorithm.{name}", f"means nothing in {advantage}.", idle=True)


def losses(verl: Verl) -> None:
    """KL in the reward and in the loss, the clip range, the loss itself."""
    _kl(verl, "algorithm.use_kl_in_reward", "algorithm.kl_penalty", "kl", "algorithm.kl_ctrl.kl_coef",
        "algorithm.kl_penalty_fn")
    if verl.is_on("algorithm.use_kl_in_reward"):
        if verl.value("algorithm.kl_ctrl.type") == "adaptive":
            verl.say("algorithm.kl_ctrl.type", "algorithm.kl_penalty_fn_args.adaptive", True)
        else:
            verl.leave("algorithm.kl_ctrl.type", "always so unless kl_penalty_fn_args.adaptive is set.", idle=True)
        for name in ("target_kl", "horizon"):
            key = f"algorithm.kl_ctrl.{name}"
            verl.say(key, f"algorithm.kl_penalty_fn_args.{name}", verl.value(key))
    _of_old_versions(verl)
    _kl(verl, f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_type", "low_var_kl", f"{ACTOR}.kl_loss_coef",
        "algorithm.kl_loss_fn")
    clip, arguments = f"{ACTOR}.clip_ratio", "algorithm.policy_loss_fn_args"
    if clip in verl.unknown:
        verl.say(clip, f"{arguments}.clip_range_low", None)
        verl.say(clip, f"{arguments}.clip_range_high", None)
    elif f"{clip}_low" in verl.values and f"{clip}_high" in verl.values:
        verl.leave(clip, "clip_ratio_low and clip_ratio_high say it.", idle=True)
    elif clip in verl.values:
        verl.say(f"{clip}_low", f"{arguments}.clip_range_low", verl.value(f"{clip}_low"))
        verl.say(f"{clip}_high", f"{arguments}.clip_range_high", verl.value(f"{clip}_high"))
        first = "high" if f"{clip}_low" in verl.values else "low"
        verl.say(clip, f"{arguments}.clip_range_{first}", verl.value(clip))
        verl.choose(f"{arguments}.clip_range_high", verl.value(clip), clip)
    mode = f"{ACTOR}.policy_loss.loss_mode"
    if mode in verl.unknown:
        verl.say(mode, "algorithm.policy_loss_fn", None)
    elif mode in verl.values:
        name = str(verl.value(mode))
        verl.say(mode, "algorithm.policy_loss_fn", LOSSES.get(name, name))
        if name not in LOSSES:
            verl.made.chosen.append(f"algorithm.policy_loss_fn={name}: no loss here is known to be veRL's {name}"
                                    f"{_near(name)}; its name stands in the recipe, so that it is not taken for "
                                    "another. Choose one.")


def _of_old_versions(verl: Verl) -> None:
    """Up to 0.3 veRL had no switch for the KL in the reward: it was there wherever the loss had none."""
    switch, coefficient = "algorithm.use_kl_in_reward", verl.value("algorithm.kl_ctrl.kl_coef", 0)
    is_silent = switch not in verl.values and switch not in verl.unknown and not verl.is_on(f"{ACTOR}.use_kl_loss")
    if is_silent and coefficient:
        verl.made.chosen.append(f"algorithm.kl_penalty_fn=none: algorithm.kl_ctrl.kl_coef={coefficient}, and nothing "
                                f"switches it on: {switch} is off by default. Up to veRL 0.3 there is no switch, and "
                                "the reward has this KL wherever the loss has none: for a script of that time set "
                                f"kl_penalty_fn=k1 and kl_penalty_fn_args.kl_coef={coefficient}.")


def _near(name: object) -> str:
    return f" ({NEAR[str(name)]})" if str(name) in NEAR else ""


def _kl(verl: Verl, switch: str, kind: str, kind_default: str, coefficient: str, to: str) -> None:
    """One of the two KL terms: switched on, of some kind, with a coefficient; `none` when it is off."""
    if not verl.is_on(switch):
        verl.say(switch, to, "none", default=True)
        return
    name = str(verl.value(kind, kind_default))
    if kind in verl.unknown:
        verl.say(kind, to, None)
        verl.fold(switch, to)
    elif name.endswith("+") and name[:-1] in KL:  # the value of one estimator, with the gradient of k2
        learnt = to.endswith("loss_fn")
        verl.say(kind, to, "k2" if learnt else KL[name[:-1]],
                 ", whose gradient is that of k2" if learnt else ", of which a reward takes the value alone")
        verl.fold(switch, to)
    elif kind in verl.values:
        verl.say(kind, to, KL.get(name, name))
        verl.fold(switch, to)
    else:
        verl.say(switch, to, KL[name], f", of the kind {name}, veRL's default")
    verl.say(coefficient, f"{to}_args.kl_coef", verl.value(coefficient, 0.001), default=True)
