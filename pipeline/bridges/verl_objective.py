"""Translates veRL's objective: algorithm, losses, sampling, old log-probs, the adapter."""

import json
from pathlib import Path
from typing import Any

from pipeline.bridges.tables import keys, said, table
from pipeline.bridges.verl_source import ACTOR, ROLLOUT, UNKNOWN, Verl

CLIP, ARGUMENTS = f"{ACTOR}.clip_ratio", "algorithm.policy_loss_fn_args"
GROUPS, ROUNDS = "algorithm.filter_groups", "algorithm.max_resample_rounds"
CORRECTION, OLD = "algorithm.rollout_correction", "algorithm.bypass_old_logprobs"
CAP, LEVEL = f"{ACTOR}.tis_imp_ratio_cap", f"{CORRECTION}.rollout_is"
THRESHOLD, LOSS = f"{CORRECTION}.rollout_is_threshold", f"{CORRECTION}.loss_type"
BYPASS = (f"{CORRECTION}.bypass_mode", f"{CORRECTION}.bypass_old_logprob_for_rollout")
POLICY, ADAPTER = "actor_rollout_ref.model", "model.lora_configs.*."
VERL = table("verl")


def algorithm(verl: Verl) -> None:
    """Translates the estimator to an algorithm and its advantage, with arguments."""
    key = "algorithm.adv_estimator"
    estimator = verl.value(key, "gae")
    if estimator is None:
        verl.say(key, "algorithm.algorithm_type", None)
        verl.algorithm_type = UNKNOWN
        return
    verl.algorithm_type = named = VERL["estimators"].get(str(estimator), str(estimator))
    if named == "grpo" and (why := _asks_for_dapo(verl)):
        verl.algorithm_type = "dapo"
        verl.made.note("dapo", why=why)
    verl.say(key, "algorithm.algorithm_type", verl.algorithm_type, default=True)
    if str(estimator) not in VERL["estimators"]:
        verl.made.note("no_estimator", estimator=estimator, near=_near(estimator))
        return
    if named == "grpo" and not verl.is_on("algorithm.norm_adv_by_std_in_grpo", True):
        verl.say("algorithm.norm_adv_by_std_in_grpo", "algorithm.advantage_fn", "dr_grpo")
    else:
        verl.leave("algorithm.norm_adv_by_std_in_grpo", f"said by the advantage function, {named}.", idle=True)
        verl.choose("algorithm.advantage_fn", named, f"{key}={estimator}", of=(key,))
    for name, functions in (("gamma", ("ppo", "reinforceplusplus")), ("lam", ("ppo",))):
        if named in functions:
            verl.say(f"algorithm.{name}", f"algorithm.advantage_fn_args.{name}", verl.value(f"algorithm.{name}"))
        else:
            verl.leave(f"algorithm.{name}", f"means nothing in {named}.", idle=True)


def _asks_for_dapo(verl: Verl) -> str | None:
    """Returns what selects DAPO in a source with GRPO's advantage: its program or its sampling."""
    if verl.is_on(f"{GROUPS}.enable"):
        return f"{GROUPS}.enable=True draws fresh tasks for groups without variance"
    return f"the script starts {verl.entry.module}" if verl.entry and verl.entry.name == "main_dapo" else None


def _near(name: object) -> str:
    return f" ({VERL['near'][str(name)]})" if str(name) in VERL["near"] else ""


# -------------------------------------------------------------------------------------------------------------- losses


def losses(verl: Verl) -> None:
    """Translates KL in the reward and in the loss, the clip range, and the loss itself."""
    switch = "algorithm.use_kl_in_reward"
    _kl(verl, switch, "algorithm.kl_penalty", "kl", "algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty_fn")
    if verl.is_on(switch):
        if verl.value("algorithm.kl_ctrl.type") == "adaptive":
            verl.say("algorithm.kl_ctrl.type", "algorithm.kl_penalty_fn_args.adaptive", True)
        else:
            verl.leave("algorithm.kl_ctrl.type", "always so unless kl_penalty_fn_args.adaptive is set.", idle=True)
        for name in ("target_kl", "horizon"):
            key = f"algorithm.kl_ctrl.{name}"
            verl.say(key, f"algorithm.kl_penalty_fn_args.{name}", verl.value(key))
    coefficient = verl.value("algorithm.kl_ctrl.kl_coef", 0)
    if coefficient and switch not in (*verl.values, *verl.unknown) and not verl.is_on(f"{ACTOR}.use_kl_loss"):
        verl.made.note("kl_of_old_versions", coefficient=coefficient)
    _kl(verl, f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_type", "low_var_kl", f"{ACTOR}.kl_loss_coef",
        "algorithm.kl_loss_fn")
    mode = f"{ACTOR}.policy_loss.loss_mode"
    name = str(verl.value(mode))
    verl.say(mode, "algorithm.policy_loss_fn", VERL["losses"].get(name, name))
    if mode in verl.values and name not in VERL["losses"]:
        verl.made.note("no_loss", name=name, near=_near(name))
    _clip_range(verl, name in ("gspo", "cispo") or verl.algorithm_type == "dapo")
    if name in ("gspo", "sapo"):  # whatever actor.loss_agg_mode is
        verl.leave(f"{ACTOR}.loss_agg_mode", said("mean_over_responses", name=name), idle=True)
        verl.choose("algorithm.loss_agg_mode", "seq-mean-token-mean", f"veRL's {name} is always so")
    elif name == "cispo":
        verl.say(f"{ACTOR}.loss_agg_mode", "algorithm.loss_agg_mode",
                 verl.value(f"{ACTOR}.loss_agg_mode", "token-mean"), default=True)


def _kl(verl: Verl, switch: str, kind: str, kind_default: str, coefficient: str, to: str) -> None:
    """Translates one of the two KL terms: whether enabled, its kind, its coefficient; `none` when disabled."""
    if not verl.is_on(switch):
        verl.say(switch, to, "none", default=True)
        for key in (kind, coefficient) if switch in verl.unknown else ():
            verl.leave(key, f"says nothing alone, and {verl.doubt(switch)}.")
        return
    name, kinds = str(verl.value(kind, kind_default)), VERL["kl"]
    if kind in verl.unknown:
        verl.say(kind, to, None)
    elif name.endswith("+") and name[:-1] in kinds:  # the value of one estimator, with the gradient of k2
        of_loss = to.endswith("loss_fn")
        verl.say(kind, to, "k2" if of_loss else kinds[name[:-1]],
                 ", whose gradient is that of k2" if of_loss else ", of which a reward takes the value alone")
    elif kind in verl.values:
        verl.say(kind, to, kinds.get(name, name))
    else:
        verl.say(switch, to, kinds[name], f", of the kind {name}, veRL's default")
    if switch not in verl.done:
        verl.fold(switch, to)
    verl.say(coefficient, f"{to}_args.kl_coef", verl.value(coefficient, 0.001), default=True)


def _clip_range(verl: Verl, differs: bool) -> None:
    """Translates clip_ratio for unset clip_ratio_low or clip_ratio_high. differs: our default is not veRL's."""
    for side in ("low", "high"):
        if differs and f"{CLIP}_{side}" not in verl.values and CLIP not in verl.values:
            verl.say(f"{CLIP}_{side}", f"{ARGUMENTS}.clip_range_{side}", 0.2, default=True)
    if CLIP in verl.unknown:
        verl.say(CLIP, f"{ARGUMENTS}.clip_range_low", None)
        verl.say(CLIP, f"{ARGUMENTS}.clip_range_high", None)
    elif f"{CLIP}_low" in verl.values and f"{CLIP}_high" in verl.values:
        verl.leave(CLIP, "clip_ratio_low and clip_ratio_high say it.", idle=True)
    elif CLIP in verl.values:
        for side in ("low", "high"):
            verl.say(f"{CLIP}_{side}", f"{ARGUMENTS}.clip_range_{side}", verl.value(f"{CLIP}_{side}"))
        verl.say(CLIP, f"{ARGUMENTS}.clip_range_{'high' if f'{CLIP}_low' in verl.values else 'low'}", verl.value(CLIP))
        verl.choose(f"{ARGUMENTS}.clip_range_high", verl.value(CLIP), CLIP)


def sampling(verl: Verl) -> None:
    """Translates `algorithm.filter_groups`.

    veRL's dynamic sampling generates whole batches until enough groups have variance, ours replaces the groups without:
    `max_num_gen_batches` batches are the first one and the replacement rounds.
    """
    is_dapo, is_on = verl.algorithm_type == "dapo", verl.is_on(f"{GROUPS}.enable")
    if is_on or f"{GROUPS}.enable" in verl.unknown:
        verl.leave("data.gen_batch_size", said("gen_batch_size"), idle=True)
    if is_dapo and not is_on:
        verl.say(f"{GROUPS}.enable", ROUNDS, 0, default=True)
    if not is_on:
        return
    key, metric = f"{GROUPS}.max_num_gen_batches", f"{GROUPS}.metric"
    batches, metrics = verl.value(key, 0), VERL["metrics"]
    verl.fold(f"{GROUPS}.enable", ROUNDS)
    if key in verl.unknown:
        verl.say(key, ROUNDS, None)
    elif isinstance(batches, int) and batches > 0:
        verl.say(key, ROUNDS, batches - 1, ", of which the first is no round of fresh tasks")
    else:
        verl.leave(key, said("batches_without_bound"))
    if verl.value(metric) in metrics or metric in verl.unknown:
        verl.say(metric, "algorithm.resample_metric", metrics.get(verl.value(metric)))
    else:
        verl.leave(metric, f"needed {', '.join(metrics)}; algorithm.resample_metric was left at its default.")


# ------------------------------------------------------------------------------------------------------- old log-probs


def old_logprobs(verl: Verl) -> None:
    """Translates the source of old log-probs, and correction weights: `algorithm.rollout_correction`.

    veRL scores the rollouts of a step once, with the weights that sampled them, and takes several optimizer steps; with
    bypass_old_logprobs=false we score them before each optimizer step. The two are equal if there is only one.
    """
    do_sample = f"{ROLLOUT}.do_sample"
    if do_sample in verl.values and not verl.is_on(do_sample):
        verl.leave(do_sample, said("greedy_rollouts"))
    bypass = next((key for key in BYPASS if key in verl.values or key in verl.unknown), BYPASS[0])
    cap = verl.value(CAP)
    is_capped = isinstance(cap, (int, float)) and cap > 0
    if not is_capped:
        verl.leave(CAP, "off there too: no correction unless algorithm.rollout_correction says so.",
                   idle=CAP not in verl.unknown)
    if bypass in verl.unknown or LEVEL in verl.unknown:
        for key, to in ((bypass, OLD), (LEVEL, f"{CORRECTION}.level"), (THRESHOLD, f"{CORRECTION}.threshold")):
            verl.say(key, to, verl.value(key))
        return
    _weights(verl, bypass, cap if is_capped else None)


def _weights(verl: Verl, bypass: str, cap: float | None) -> None:
    """Writes the source of old log-probs, from the switch `bypass`, and the weights of a cap or of rollout_is."""
    if str(verl.value(bypass)).lower() not in ("true", "false", "none"):
        verl.leave(bypass, "needed true or false; veRL's default, false, was taken.")
    elif verl.is_on(bypass):  # the loss's ratio already includes the weight
        clips = verl.value(LOSS, "ppo_clip") == "ppo_clip"
        verl.say(bypass, OLD, True)
        verl.leave(LOSS, "always so." if clips else said("weights_without_clip"), idle=clips)
        for key in (LEVEL, THRESHOLD) if clips else ():
            verl.leave(key, said("bypassed"), idle=True)
        return
    verl.leave(LOSS, "means nothing without bypass_mode=True.", idle=True)
    if cap is None and verl.value(LEVEL) not in ("token", "sequence"):
        _without_weights(verl, bypass)
        return
    by = LEVEL if cap is None else CAP
    if cap is not None:
        verl.say(CAP, f"{CORRECTION}.threshold", cap)
        verl.choose(f"{CORRECTION}.level", "token", CAP)
    else:
        verl.say(LEVEL, f"{CORRECTION}.level", verl.value(LEVEL))
        verl.say(THRESHOLD, f"{CORRECTION}.threshold", verl.value(THRESHOLD))
    if bypass not in verl.done:
        verl.say(bypass, OLD, False)
    verl.choose(OLD, False, f"{by}: the trainer's own log-probs are the old ones")
    if verl.interval != 1:
        verl.made.note("scored_again", by=by, steps=_steps(verl))


def _without_weights(verl: Verl, bypass: str) -> None:
    if verl.value(LEVEL) is None:
        verl.leave(THRESHOLD, "means nothing without rollout_is.", idle=True)
        verl.fold(LEVEL, f"{CORRECTION}.level")
    once = verl.interval == 1
    if bypass not in verl.done:
        verl.say(bypass, OLD, not once, "" if once else ", which scores once for several optimizer steps", default=once)
    if once:
        verl.choose(OLD, False, "veRL's default")
        verl.choose(f"{CORRECTION}.level", "none", "no weights between engine and trainer", of=(LEVEL,))
    else:
        verl.made.note("scored_once", steps=_steps(verl))


def _steps(verl: Verl) -> str:
    return f" A step of veRL has {verl.interval} optimizer steps here." if verl.interval else ""


# ------------------------------------------------------------------------------------------------------------- adapter


def adapter(verl: Verl, section: str = POLICY) -> None:
    """Writes an adapter if lora_rank is above 0; without one veRL trains all parameters.

    section: the trainer's section for the model; settings below `lora` are the Megatron trainer's.
    """
    names = {f"{section}{key.removeprefix(POLICY)}": fate.to.removeprefix(ADAPTER) for key, fate in keys("verl").items()
             if getattr(fate, "to", "").startswith(ADAPTER)}
    within = f"{section}.lora."
    is_megatrons = verl.value(f"{within}rank", 0) not in (0, None)
    path = next((key for key in (f"{section}.lora_adapter_path", f"{within}adapter_path") if verl.value(key)), None)
    has_rank = is_megatrons or verl.value(f"{section}.lora_rank", 0) not in (0, None)
    if path and not has_rank:
        _adapter_of(verl, path, [key for key in verl.values if key in names or key.startswith(within)])
        return
    if not has_rank:
        for key in [key for key in verl.values if key in names or key.startswith(within)]:
            verl.leave(key, "off there too: lora_rank is 0, so all parameters are trained.", idle=True)
        return
    for key, to in names.items():
        value: Any = verl.value(key)
        if key not in verl.values or key.startswith(within) != is_megatrons:
            verl.leave(key, "says nothing beside the other settings of the adapter.", idle=True)
        elif value is None:
            verl.leave(key, "null there: nothing is set.", idle=True)
        elif key.endswith("_modules") and isinstance(value, str) and value != "all-linear":
            verl.leave(key, f"a pattern there; needed the layers' last names, {to}: [q_proj, v_proj].")
        else:
            verl.done.add(key)
            verl.made.rename(verl.values[key], ("model", "lora_configs", 0, to), value, key)
    alpha = ("lora.alpha", 32) if is_megatrons else ("lora_alpha", 16)
    verl.made.choose(("model", "lora_configs", 0, "lora_alpha"), alpha[1], f"veRL's default of {section}.{alpha[0]}")


def _adapter_of(verl: Verl, path: str, others: list[str]) -> None:
    """Handles an adapter read from a directory, with its own rank: veRL uses it, whatever lora_rank is."""
    place = str(verl.value(path))
    verl.done.add(path)
    verl.made.rename(verl.values[path], ("model", "lora_configs", 0, "path"), place, path)
    for key in others:
        if key != path:
            verl.leave(key, "the adapter has its own, which counts.", idle=True)
    config = Path(place) / "adapter_config.json"
    read = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    if not isinstance(read, dict) or not isinstance(read.get("r"), int):
        verl.made.ask("rank_of_adapter", path=place)
        return
    for to, name in (("lora_rank", "r"), ("lora_alpha", "lora_alpha")):
        if name in read:
            verl.made.choose(("model", "lora_configs", 0, to), read[name], f"{name} of its adapter_config.json")
