"""Rules between settings that are individually within their bounds."""

import re

from pipeline.check.data_rules import data_problems
from pipeline.check.reward_rules import broken_reward_rules
from pipeline.check.sample_rules import sample_problems
from pipeline.compose.stage_settings import of_stages
from pipeline.plan.modes import TRAINING, kind_of, planned
from pipeline.settings.algorithm import ADVANTAGES
from pipeline.settings.algorithms import DEMONSTRATED, GIVEN, PAIR_TYPES
from pipeline.settings.lora import adapter_rules

# advantages that are undefined, or lose their baseline, in a group of one
COMPARE = ("asymre", "dr_grpo", "gigpo", "grpo", "opmd", "raft", "rec", "rloo", "step_wise_grpo")


def broken_rules(config: dict) -> list[str]:
    """Lists every broken rule, one line each with the stages it concerns. config: of the whole run.

    Only stages are checked: a run-wide value that every stage overrides has no effect.
    """
    return [*_names(config), *of_stages(config, planned(config), rules_of_stage)]


def rules_of_stage(c: dict) -> list[str]:
    """Does the same for one stage. c: its settings (`overlays.effective`)."""
    parts = (_mode, _environment, _model, _lengths, _algorithm, data_problems, broken_reward_rules)
    return [problem for part in parts for problem in part(c)]


def _names(c: dict) -> list[str]:
    problems = [f"{key}={c[key]!r}: needed letters, digits, '_', '-' and '.', beginning with none of the last two; it "
                "becomes a directory name." for key in ("project", "name") if not re.fullmatch(r"\w[\w.,=-]*", c[key])]
    if re.search(r"[{}]", c["checkpoint_root_dir"]):
        problems.append(f"checkpoint_root_dir={c['checkpoint_root_dir']}: braces have a meaning to Snakemake; needed a "
                        "path without.")
    return problems


def _mode(c: dict) -> list[str]:
    """Checks what a mode requires of a single stage; rules about preceding stages: pipeline/plan/modes.py."""
    problems = []
    algorithm = c["algorithm"]["algorithm_type"]
    if c["mode"] == "explore" and algorithm in GIVEN:
        problems.append(f"mode=explore: {algorithm} learns from given responses and explores nothing; needed "
                        "mode=train or both.")
    every, sets = c["explorer"]["eval_interval"], c["buffer"]["explorer_input"]["eval_tasksets"]
    if every and not sets:
        problems.append(f"explorer.eval_interval={every}: there is nothing to evaluate on; needed a set in "
                        "buffer.explorer_input.eval_tasksets, or null.")
    if c["mode"] == "bench" and not sets:
        problems.append("mode=bench: there is nothing to evaluate on; needed a set in "
                        "buffer.explorer_input.eval_tasksets.")
    return problems


def _environment(c: dict) -> list[str]:
    problems = []
    for name, value in c["explorer"]["env_vars"].items():
        key = f"explorer.env_vars.{name}"
        if not re.fullmatch(r"[A-Za-z_]\w*", str(name), re.ASCII):
            problems.append(f"{key}: needed the name of an environment variable: letters, digits and '_'.")
        if name in OURS:
            problems.append(f"{key}: is set by the stage itself. {OURS[name]}")
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            told = str(value).lower() if isinstance(value, bool) else value
            problems.append(f"{key}={told}: needed a text or a number; a variable holds a text, so put the word in "
                            "quotes.")
    return problems


def _model(c: dict) -> list[str]:
    model, init = c["model"], c["model"]["init"]
    problems = adapter_rules(model["lora_configs"])
    if init["enable"] and model["model_path"]:
        problems.append("model.model_path and model.init.enable exclude each other: set one.")
    if init["enable"] and init["hidden_size"] % (32 * max(init["num_attention_heads"], 1)):
        problems.append(f"model.init.hidden_size={init['hidden_size']}: needed a multiple of 32 x num_attention_heads "
                        f"({init['num_attention_heads']}); the CPU attention kernels of vLLM know no smaller heads.")
    if init["enable"] and init["num_attention_heads"] % max(init["num_key_value_heads"], 1):
        problems.append("model.init.num_key_value_heads must divide model.init.num_attention_heads.")
    return problems


def _lengths(c: dict) -> list[str]:
    model, problems = c["model"], []
    needed = model["max_prompt_tokens"] + model["max_response_tokens"]
    if model["max_model_len"] is not None and model["max_model_len"] < needed:
        problems.append(f"model.max_model_len={model['max_model_len']}: prompt + response need {needed} tokens.")
    budget, longest = c["trainer"]["max_token_len_per_gpu"], model["max_model_len"] or needed
    if budget < longest:
        problems.append(f"trainer.max_token_len_per_gpu={budget}: a sequence is not cut, and the longest "
                        f"(model.max_model_len, or prompt + response) has {longest} tokens.")
    return problems


def _algorithm(c: dict) -> list[str]:
    """Checks the settings that this kind of stage reads: an explorer has no optimizer, a trainer no engine."""
    model, kind, problems = c["model"], kind_of(c), []
    if kind in TRAINING:
        problems += _training(c)
    if kind in ("rft", "offline"):
        problems += _rollouts(c)
    if kind in ("rft", "rollout"):
        problems += _resampled(c["algorithm"], kind)
        if model["top_p"] != 1 or model["top_k"] != -1:
            problems.append("model.top_p and model.top_k cut the sampling distribution, which the trainer does not: "
                            "its ratios would be biased. Leave them at 1 and -1; evaluation sets have their own "
                            "rollout_args.")
    return problems


def _training(c: dict) -> list[str]:
    algorithm, trainer, problems = c["algorithm"], c["trainer"], []
    problems += _optimizer("algorithm.optimizer", algorithm["optimizer"])
    problems += _optimizer("trainer.critic.optimizer", trainer["critic"]["optimizer"])
    if trainer["offload_param"] and trainer["zero_stage"] != 3:
        problems.append(f"trainer.offload_param with trainer.zero_stage={trainer['zero_stage']}: only stage 3 parts "
                        "the parameters, and can keep them in host memory. Set trainer.zero_stage=3.")
    return problems + _pairs(algorithm)


def _pairs(algorithm: dict) -> list[str]:
    """Reports a pair loss without pairs, or another loss on pairs; a user's loss may be for either."""
    kind, loss = algorithm["algorithm_type"], algorithm["policy_loss_fn"] or ":"
    if kind in PAIR_TYPES and algorithm["entropy_loss_fn"] == "mix":
        return [f"algorithm.entropy_loss_fn=mix with algorithm.algorithm_type={kind}: pairs hold no rows of an expert. "
                "Set default or none."]
    if kind in DEMONSTRATED or ":" in loss or (loss in PAIR_TYPES) == (kind in PAIR_TYPES):
        return []
    advice = "Choose a loss of those names" if kind in PAIR_TYPES else "Choose another loss"
    return [f"algorithm.policy_loss_fn={loss} with algorithm.algorithm_type={kind}: {', '.join(PAIR_TYPES)} compare "
            f"pairs of responses, which the types of the same names read, and no other loss does. {advice}, or the "
            "type that goes with it."]


def _optimizer(key: str, optimizer: dict) -> list[str]:
    betas, problems = optimizer["betas"], []
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        problems.append(f"{key}.betas={betas}: needed two numbers, at least 0 and less than 1.")
    if optimizer["lr_warmup_steps"] and optimizer["lr_warmup_steps_ratio"]:
        problems.append(f"{key}.lr_warmup_steps={optimizer['lr_warmup_steps']} and lr_warmup_steps_ratio="
                        f"{optimizer['lr_warmup_steps_ratio']} exclude each other: set one to 0.")
    return problems


def _rollouts(c: dict) -> list[str]:
    """Rules for training on rollouts."""
    algorithm, problems = c["algorithm"], []
    if kind_of(c) == "rft" and algorithm["advantage_fn"] in COMPARE and algorithm["repeat_times"] < 2:
        problems.append(f"algorithm.repeat_times=1: {algorithm['advantage_fn']} compares the rollouts of a group, "
                        "needed at least 2.")
    if algorithm["advantage_fn"] == "remax" and not algorithm["greedy_baseline"]:
        problems.append("algorithm.advantage_fn=remax needs the reward of a greedy response to each task; needed "
                        "algorithm.greedy_baseline=true.")
    if c["trainer"]["critic_warmup"] and algorithm["advantage_fn"] != "ppo":
        problems.append(f"trainer.critic_warmup={c['trainer']['critic_warmup']} with algorithm.advantage_fn="
                        f"{algorithm['advantage_fn']}: only ppo has a critic. Set it to 0, or advantage_fn=ppo.")
    return problems + sample_problems(c)


def _resampled(algorithm: dict, kind: str) -> list[str]:
    """Reports group replacement where there are no groups or nothing compares their responses. The purpose of an
    explore-only stage is set by later stages."""
    advantage, rounds = algorithm["advantage_fn"], algorithm["max_resample_rounds"]
    alone = kind == "rft" and advantage in ADVANTAGES and advantage not in COMPARE
    if not rounds or ((algorithm["repeat_times"] or 1) >= 2 and not alone):
        return []
    with_advantage, one_of = (f"advantage_fn={advantage} and ", f" and one of {', '.join(COMPARE)}") if kind == "rft" \
        else ("", "")
    return [f"algorithm.max_resample_rounds={rounds} with {with_advantage}repeat_times={algorithm['repeat_times']}: it "
            "replaces groups whose responses are equally good, which teach nothing where they are compared; needed "
            f"repeat_times of at least 2{one_of}, or 0."]


# environment variables that a stage sets for its explorer, and the alternative for each
OURS = {
    "CUDA_VISIBLE_DEVICES": "Set it where the run is started, or cluster.gpu_per_node.",
    "PYTHONPATH": "Set it where the run is started.",
}
