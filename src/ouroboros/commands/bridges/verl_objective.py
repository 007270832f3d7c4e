"""Facts of veRL's objective: distillation, algorithm, losses, sampling, old log-probs; and the adapter."""

import re
from typing import Any

from ouroboros.commands.bridges.tables import keys, table
from ouroboros.commands.bridges.verl_source import ACTOR, ROLLOUT, UNKNOWN, Verl
from ouroboros.pipeline.settings.algorithm import RolloutRejection

CLIP, GROUPS, CORRECTION = f"{ACTOR}.clip_ratio", "algorithm.filter_groups", "algorithm.rollout_correction"
CAP, LEVEL = f"{ACTOR}.tis_imp_ratio_cap", f"{CORRECTION}.rollout_is"
LIMIT, RULES, BOUNDS = f"{LEVEL}_threshold", f"{CORRECTION}.rollout_rs", f"{CORRECTION}.rollout_rs_threshold"
BYPASS = (f"{CORRECTION}.bypass_mode", f"{CORRECTION}.bypass_old_logprob_for_rollout")
POLICY, ADAPTER, LORA = "actor_rollout_ref.model", "model.lora_configs.*.", ("model", "lora_configs", 0)
OWN_CLIPS = ("gspo", "cispo", "dppo_tv", "dppo_kl", "geo_mean")  # losses whose clip here is not 0.2 by default
VERL = table("verl")
DISTILLED = "distillation.distillation_loss"
TEACHER = re.compile(r"distillation\.teacher_models\.([\w-]+)\.model_path")
UNUSED = "teacher_model"  # veRL's own entry, which another name replaces
# without task rewards veRL's own policy loss is not part of the sum: neither its clip range nor its terms
OF_POLICY_LOSS = ("algorithm.adv_estimator", "algorithm.norm_adv_by_std_in_grpo", "algorithm.gamma", "algorithm.lam",
                  "algorithm.use_kl_in_reward", *(f"{ACTOR}.{name}" for name in (
                      "clip_ratio", "clip_ratio_low", "clip_ratio_high", "use_kl_loss", "kl_loss_type", "kl_loss_coef",
                      "entropy_coeff", "policy_loss.loss_mode")))
Facts = dict[str, Any]


def distillation(verl: Verl, facts: Facts) -> Facts:
    """Writes the teacher of on-policy distillation; names what of the loss is another one in on_policy_distill as lost.

    With loss_mode=k1 and use_policy_gradient the advantage of a token is log p - log q of teacher and student, and
    use_task_rewards=False trains on nothing else. Defaults are those of veRL's distillation.yaml.
    """
    if not verl.is_on("distillation.enabled"):
        return {"distils": False}
    named = {match[1]: match[0] for match in map(TEACHER.fullmatch, [*verl.values, *verl.unknown]) if match}
    teachers = {name: key for name, key in named.items() if name != UNUSED or len(named) == 1}
    for key in teachers.values() if len(teachers) == 1 else ():
        verl.say(key, "model.teacher_model_path", verl.value(key))
    if len(teachers) != 1:
        verl.made.lack("judge or teacher", f"{len(teachers)} teachers")
    for name, default, same in (("loss_mode", "k3", ("k1", "kl")), ("use_policy_gradient", False, (True,)),
                                ("use_task_rewards", True, (False,))):
        key = f"{DISTILLED}.{name}"
        found = verl.is_on(key, default) if isinstance(default, bool) else verl.value(key, default)
        if found in same and key not in verl.unknown:
            verl.fold(key, "algorithm.algorithm_type")
        else:
            verl.made.lack("judge or teacher", f"{key}={found}")
    verl.made.note("distilled")
    for key in OF_POLICY_LOSS:
        verl.leave(key, "has no effect in on_policy_distill: the teacher alone says what is learnt.", idle=True)
        verl.values.pop(key, None)
        verl.unknown.pop(key, None)
    return {"distils": True}


def algorithm(verl: Verl, facts: Facts) -> Facts:
    """Returns the algorithm and advantage of the estimator; DAPO has GRPO's advantage, and its program or sampling."""
    estimator = verl.value("algorithm.adv_estimator", "gae")
    is_known, named = str(estimator) in VERL["estimators"], VERL["estimators"].get(str(estimator), str(estimator))
    filters = verl.is_on(f"{GROUPS}.enable")
    is_dapo = named == "grpo" and (filters or bool(verl.entry and verl.entry.name == "main_dapo"))
    verl.algorithm_type = UNKNOWN if estimator is None else "dapo" if is_dapo else named
    if facts["distils"]:
        verl.algorithm_type, is_dapo, is_known, estimator = "on_policy_distill", False, False, None
    return {"algorithm_type": None if estimator is None else verl.algorithm_type, "advantage": is_known and named,
            "estimator": estimator, "is_named": is_known or estimator is None, "near": near(estimator),
            "is_dapo": is_dapo, "is_normed": verl.is_on("algorithm.norm_adv_by_std_in_grpo", True), "filters": filters,
            "why": f"{GROUPS}.enable=True draws fresh tasks for groups without variance" if filters else
                   f"the script starts {verl.entry and verl.entry.module}"}


def near(name: object) -> str:
    """Returns what comes near an estimator or a loss without a counterpart, in parentheses."""
    return f" ({VERL['near'][str(name)]})" if str(name) in VERL["near"] else ""


def losses(verl: Verl, facts: Facts) -> Facts:
    """Translates both KL terms, and returns the facts of the loss and its clip range."""
    control, switch, mode = "algorithm.kl_ctrl", "algorithm.use_kl_in_reward", f"{ACTOR}.policy_loss.loss_mode"
    if not facts["distils"]:
        _kl(verl, switch, "algorithm.kl_penalty", "kl", f"{control}.kl_coef", "algorithm.kl_penalty_fn")
        _kl(verl, f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_type", "low_var_kl", f"{ACTOR}.kl_loss_coef",
            "algorithm.kl_loss_fn")
    kind, coefficient, name = f"{control}.type", verl.value(f"{control}.kl_coef", 0), str(verl.value(mode))
    without_switch = not (facts["distils"] or switch in (*verl.values, *verl.unknown)
                          or verl.is_on(f"{ACTOR}.use_kl_loss"))
    is_set = {side: f"{CLIP}{side}" in (*verl.values, *verl.unknown) for side in ("", "_low", "_high")}
    return {"in_reward": verl.is_on(switch), "is_adaptive": kind in verl.unknown or verl.value(kind) == "adaptive",
            "coefficient": coefficient, "kl_of_old_versions": bool(coefficient) and without_switch,
            "loss": name, "policy_loss": VERL["losses"].get(name, name), "near": near(name),
            "is_loss_known": mode not in verl.values or name in VERL["losses"],
            "is_by_response": verl.value(f"{ACTOR}.loss_agg_mode") == "seq-mean-token-mean",
            "clip": verl.value(CLIP), "is_clip_unknown": CLIP in verl.unknown, "clips": is_set[""],
            "clips_low": is_set["_low"], "clips_high": is_set["_high"],
            "clip_differs": name in OWN_CLIPS or verl.algorithm_type == "dapo"}


def _kl(verl: Verl, switch: str, kind: str, default: str, coefficient: str, to: str) -> None:
    """Translates one of the two KL terms: whether enabled, its kind, its coefficient; `none` when disabled."""
    if not verl.is_on(switch):
        verl.say(switch, to, "none", default=True)
        for key in (kind, coefficient) if switch in verl.unknown else ():
            verl.leave(key, f"has no meaning by itself, and {verl.doubt(switch)}.")
        return
    name, kinds, of_loss = str(verl.value(kind, default)), VERL["kl"], to.endswith("loss_fn")
    if name.endswith("+") and name[:-1] in kinds:  # the value of one estimator, with the gradient of k2
        verl.say(kind, to, "k2" if of_loss else kinds[name[:-1]],
                 ", whose gradient is that of k2" if of_loss else ", of which a reward takes the value alone")
    elif kind in verl.values or kind in verl.unknown:
        verl.say(kind, to, kinds.get(name, name))
    else:
        verl.say(switch, to, kinds[name], f", of the kind {name}, veRL's default")
    if switch not in verl.done:
        verl.fold(switch, to)
    verl.say(coefficient, f"{to}_args.kl_coef", verl.value(coefficient, 0.001), default=True)


def sampling(verl: Verl, facts: Facts) -> Facts:
    """Returns the facts of `algorithm.filter_groups`.

    veRL's dynamic sampling generates whole batches until enough groups have variance, ours replaces the groups without:
    `max_num_gen_batches` batches are the first one and the replacement rounds.
    """
    key, switch = f"{GROUPS}.max_num_gen_batches", f"{GROUPS}.enable"
    batches = verl.value(key)
    is_bounded = isinstance(batches, int) and batches > 0
    return {"may_filter": facts["filters"] or switch in verl.unknown, "is_bounded": is_bounded or key in verl.unknown,
            "rounds": batches - 1 if is_bounded else None, "is_dapo": verl.algorithm_type == "dapo"}


def old_logprobs(verl: Verl, facts: Facts) -> Facts:
    """Returns the source of old log-probs and of correction weights: `algorithm.rollout_correction`.

    veRL scores the rollouts of a step once, with the weights that sampled them, and takes several optimizer steps; with
    bypass_old_logprobs=false we score them before each optimizer step. The two are equal if there is only one.
    """
    bypass = next((key for key in BYPASS if key in verl.values or key in verl.unknown), BYPASS[0])
    cap, level, loss = verl.value(CAP), verl.value(LEVEL), verl.value(f"{CORRECTION}.loss_type", "ppo_clip")
    is_valid = str(verl.value(bypass)).lower() in ("true", "false", "none")
    is_capped = isinstance(cap, (int, float)) and cap > 0
    _rejection(verl)
    weights = ("unknown" if bypass in verl.unknown or LEVEL in verl.unknown else
               "bypassed" if is_valid and verl.is_on(bypass) else
               "cap" if is_capped else "level" if level in ("token", "sequence") else "none")
    if weights == "level":
        _ice_pop(verl, str(level))
    return {"is_greedy": not verl.is_on(f"{ROLLOUT}.do_sample", True), "is_capped": is_capped or CAP in verl.unknown,
            "cap": cap if is_capped else None, "by_cap": CAP in verl.unknown or weights == "cap", "weights": weights,
            "bypass": bypass, "is_valid": is_valid, "is_without_level": level is None, "is_clipped": loss == "ppo_clip",
            "by": CAP if is_capped else LEVEL, "once": verl.interval == 1,
            "steps": f" A step of veRL has {verl.interval} optimizer steps here." if verl.interval else ""}


def _rejection(verl: Verl) -> None:
    """Writes the bounds of rollout_rs, where veRL would read them; of k1 one number x is [1 / x, x]."""
    options = [part.strip() for part in str(verl.value(RULES) or "").split(",") if part.strip()]
    given = [part.strip() for part in str(verl.value(BOUNDS) or "").split(",") if part.strip()]
    given = given * len(options) if len(given) == 1 else given
    try:
        bounds = {name: _bound(name, text) for name, text in zip(options, given, strict=True)}
    except (ValueError, ZeroDivisionError):
        return
    if not options or not set(options) <= set(RolloutRejection.model_fields):
        return
    for name, bound in bounds.items():
        verl.say(RULES, f"algorithm.rollout_rejection.{name}", bound)
    verl.fold(BOUNDS, "algorithm.rollout_rejection")


def _bound(name: str, text: str) -> float | list[float]:
    if not name.endswith("k1"):
        return float(text)
    low, _, high = text.rpartition("_")
    return [float(low) if low else 1 / float(high), float(high)]


def _ice_pop(verl: Verl, level: str) -> None:
    """Writes a threshold `low_high`, outside of which weights are 0, as a threshold and a rejection."""
    low, between, high = str(verl.value(LIMIT) or "").partition("_")
    try:
        bounds = [1 / float(high), 1 / float(low)] if between else None
    except (ValueError, ZeroDivisionError):
        bounds = None
    if bounds:
        verl.say(LIMIT, f"{CORRECTION}.threshold", float(high))
        estimate = {"token": "token_k1", "sequence": "seq_sum_k1"}[level]
        verl.choose(f"algorithm.rollout_rejection.{estimate}", bounds, f"{LIMIT}: IcePop", (LIMIT,))


# ------------------------------------------------------------------------------------------------------------- adapter


def adapter(verl: Verl, facts: Facts) -> None:
    """Writes an adapter if lora_rank is above 0; without one veRL trains all parameters.

    facts["model"]: the trainer's section for the model; settings below `lora` are the Megatron trainer's. veRL uses the
    rank of an adapter that is read from a directory, whatever lora_rank is.
    """
    section = facts["model"]
    names = {f"{section}{key.removeprefix(POLICY)}": fate.to.removeprefix(ADAPTER) for key, fate in keys("verl").items()
             if getattr(fate, "to", "").startswith(ADAPTER)}
    within, known = f"{section}.lora.", "disabled there too: lora_rank is 0, so all parameters are trained."
    is_megatrons = verl.value(f"{within}rank", 0) not in (0, None)
    if not is_megatrons and verl.value(f"{section}.lora_rank", 0) in (0, None):
        path = next((key for key in (f"{section}.lora_adapter_path", f"{within}adapter_path") if verl.value(key)), None)
        if path:
            known = "the adapter has its own, which counts."
            verl.done.add(path)
            verl.made.rename(verl.values[path], (*LORA, "path"), str(verl.value(path)), path)
            verl.made.ask("rank_of_adapter", path=verl.value(path))
        for key in verl.values:
            if (key in names or key.startswith(within)) and key != path:
                verl.leave(key, known, idle=True)
        return
    for key, to in names.items():
        value = verl.value(key)
        if key not in verl.values or key.startswith(within) != is_megatrons or value is None:
            verl.leave(key, "has no effect with the other settings of the adapter.", idle=True)
        elif key.endswith("_modules") and isinstance(value, str) and value != "all-linear":
            verl.leave(key, f"a pattern there; needed the layers' last names, {to}: [q_proj, v_proj].")
        else:
            verl.done.add(key)
            verl.made.rename(verl.values[key], (*LORA, to), value, key)
    name, alpha = ("lora.alpha", 32) if is_megatrons else ("lora_alpha", 16)
    verl.made.choose((*LORA, "lora_alpha"), alpha, f"veRL's default of {section}.{name}")
