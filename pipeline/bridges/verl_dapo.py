"""What veRL says for DAPO (Yu et al. 2025, arXiv:2503.14476): dynamic sampling and the penalty on overlong responses.

veRL's dynamic sampling generates whole batches until enough groups differ, ours draws fresh tasks for the places of
the groups that do not: `max_num_gen_batches` batches are the first one and the rounds behind it.
"""

from pipeline.bridges.verl_source import Verl

GROUPS, ROUNDS = "algorithm.filter_groups", "algorithm.max_resample_rounds"
METRICS = {"acc": "accuracy", "score": "reward", "seq_reward": "reward", "seq_final_reward": "reward"}
CLIP = "actor_rollout_ref.actor.clip_ratio"
PENALTIES = ("reward_model.overlong_buffer", "reward_model.reward_kwargs.overlong_buffer_cfg",
             "reward.reward_kwargs.overlong_buffer_cfg", "custom_reward_function.overlong_buffer")
LONGEST = ("reward_model.reward_kwargs.max_resp_len", "reward.reward_kwargs.max_resp_len")
SOURCE = ("buffer", "explorer_input")

# the rules below as rows of docs/trinity-keys.md
ROWS = {
    GROUPS: f"with enable=True: `algorithm.algorithm_type` dapo, and `{ROUNDS}`",
    f"{GROUPS}.max_num_gen_batches": f"`{ROUNDS}`, less 1: the first batch is no round of fresh tasks",
    f"{GROUPS}.metric": "`algorithm.resample_metric` (acc: accuracy; score, seq_reward, seq_final_reward: reward)",
    **dict.fromkeys(PENALTIES, "with enable=True: `overlong_penalty` in `default_reward_fn_type`, and of "
                               "`reward_fn_args` cache_length (len) and penalty_factor (half)"),
}


def asked_by(verl: Verl) -> str | None:
    """What in a source with the advantage of GRPO asks for DAPO: its program or its sampling."""
    if verl.is_on(f"{GROUPS}.enable"):
        return f"{GROUPS}.enable=True draws fresh tasks for groups without variance"
    return f"the script starts {verl.entry.module}" if verl.entry and verl.entry.name == "main_dapo" else None


def sampling(verl: Verl) -> None:
    """`algorithm.filter_groups`, and the clip range that veRL has where the source is silent."""
    if verl.algorithm_type == "dapo":
        for side in ("low", "high"):
            to = f"algorithm.policy_loss_fn_args.clip_range_{side}"
            if f"{CLIP}_{side}" not in verl.values and CLIP not in verl.values:
                verl.say(f"{CLIP}_{side}", to, 0.2, default=True)
    enabled = verl.is_on(f"{GROUPS}.enable")
    verl.leave("data.gen_batch_size", "an explorer step draws as many tasks as it trains on, and rounds of fresh "
                                      f"ones only for groups without variance: {ROUNDS}.", idle=True)
    if verl.algorithm_type != "dapo" and not enabled:
        return
    if not enabled:
        verl.say(f"{GROUPS}.enable", ROUNDS, 0, default=True)
        return
    _rounds(verl)
    metric = verl.value(f"{GROUPS}.metric")
    if metric in METRICS or f"{GROUPS}.metric" in verl.unknown:
        verl.say(f"{GROUPS}.metric", "algorithm.resample_metric", METRICS.get(metric))
    else:
        verl.leave(f"{GROUPS}.metric", f"needed {', '.join(METRICS)}; algorithm.resample_metric was left at its "
                                       "default.")


def _rounds(verl: Verl) -> None:
    key = f"{GROUPS}.max_num_gen_batches"
    batches = verl.value(key, 0)
    verl.fold(f"{GROUPS}.enable", ROUNDS)
    if key in verl.unknown:
        verl.say(key, ROUNDS, None)
    elif isinstance(batches, int) and batches > 0:
        verl.say(key, ROUNDS, batches - 1, ", of which the first is no round of fresh tasks")
    else:
        verl.leave(key, "there as many batches as it takes; here the rounds are bounded, by dapo's own "
                        f"{ROUNDS} where the recipe has none.")


def overlong(verl: Verl) -> None:
    """The penalty on responses near the longest: a reward function here, beside the one that says what is right."""
    prefix = next((p for p in PENALTIES if verl.is_on(f"{p}.enable")), None)
    by_model = ("explorer", "auxiliary_models", 0, "model_path") in verl.made.entries
    if prefix is None or by_model:
        return
    to = "buffer.explorer_input.default_reward_fn_type"
    verl.made.entries.pop((*SOURCE, "default_reward_fn_type"), None)
    verl.say(f"{prefix}.enable", to, ["accuracy_reward", "overlong_penalty"])
    sets = sorted({path[3] for path in verl.made.entries if path[:3] == (*SOURCE, "tasksets")})
    longest = next((key for key in LONGEST if key in verl.values), "data.max_response_length")
    arguments = ((f"{prefix}.len", "cache_length", verl.value(f"{prefix}.len")),
                 (longest, "max_response_length", verl.value(longest)),
                 (f"{prefix}.penalty_factor", "penalty_factor", _half(verl.value(f"{prefix}.penalty_factor", 1.0))))
    for key, name, value in arguments:
        if key in verl.unknown:
            verl.say(key, f"buffer.explorer_input.tasksets.*.reward_fn_args.{name}", None)
        elif value is not None and (key in verl.values or name == "penalty_factor"):
            for index in sets:
                verl.made.choose((*SOURCE, "tasksets", index, "reward_fn_args", name), value, key)
            if key.startswith(("reward", "custom")):
                verl.fold(key, f"buffer.explorer_input.tasksets.*.reward_fn_args.{name}")
    verl.made.chosen.append("reward_fn_args.penalty_factor: half of veRL's, whose math_dapo reward is 1 for right and "
                            "-1 for wrong, where accuracy_reward has 1 and 0. Double it where veRL's reward is 1 and 0 "
                            "for the rows' data_source.")


def _half(factor: object) -> object:
    return factor / 2 if isinstance(factor, (int, float)) and not isinstance(factor, bool) else factor
