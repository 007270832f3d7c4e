"""Rules between settings: what a configuration must not say even where every value is within its bounds."""

import re

from pipeline.algorithms import filled
from pipeline.errors import ConfigError, nearest
from pipeline.schedule import Schedule


def broken_rules(config: dict) -> list[str]:
    """Every rule that is broken, one line each. config: of the whole run, or of one stage (pipeline/overlays.py)."""
    c = {**config, "algorithm": filled(config["algorithm"])}
    return _names(c) + _model(c) + _lengths(c) + _algorithm(c) + _data(c) + _rewards(c)


def _names(c: dict) -> list[str]:
    problems = [f"{key}={c[key]!r}: needed letters, digits, '_', '-' and '.', beginning with none of the last two; it "
                "becomes a directory name." for key in ("project", "name") if not re.fullmatch(r"\w[\w.,=-]*", c[key])]
    if re.search(r"[{}]", c["checkpoint_root_dir"]):
        problems.append(f"checkpoint_root_dir={c['checkpoint_root_dir']}: braces have a meaning to Snakemake; needed a "
                        "path without.")
    return problems


def _model(c: dict) -> list[str]:
    model, init = c["model"], c["model"]["init"]
    problems = []
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
    algorithm, model, problems = c["algorithm"], c["model"], []
    betas = algorithm["optimizer"]["betas"]
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        problems.append(f"algorithm.optimizer.betas={betas}: needed two numbers, at least 0 and less than 1.")
    if algorithm["algorithm_type"] == "sft":
        return problems
    if model["top_p"] != 1 or model["top_k"] != -1:
        problems.append("model.top_p and model.top_k cut the sampling distribution, which the trainer does not: its "
                        "ratios would be biased. Leave them at 1 and -1; evaluation sets have their own rollout_args.")
    return problems + _rollouts(c)


def _rollouts(c: dict) -> list[str]:
    """Rules for training on rollouts."""
    algorithm, buffer, taskset = c["algorithm"], c["buffer"], c["buffer"]["explorer_input"]["taskset"]
    problems = []
    if algorithm["advantage_fn"] == "grpo" and algorithm["repeat_times"] < 2:
        problems.append("algorithm.repeat_times=1: grpo compares the rollouts of a group, needed at least 2.")
    if taskset["repeat_times"] not in (None, algorithm["repeat_times"]):
        problems.append(f"buffer.explorer_input.taskset.repeat_times={taskset['repeat_times']}: rollouts to train on "
                        f"follow algorithm.repeat_times={algorithm['repeat_times']}: set that.")
    for name, value in taskset["rollout_args"].items():
        if value not in (None, c["model"][name]):
            problems.append(f"buffer.explorer_input.taskset.rollout_args.{name}={value}: rollouts to train on follow "
                            f"model.{name}={c['model'][name]}, by which the trainer scores them: set that.")
    explored = buffer["batch_size"] * algorithm["repeat_times"]
    try:
        Schedule(explored, buffer["train_batch_size"] or explored, 1, 0, 1)
    except ConfigError as error:
        problems.append(str(error))
    return problems


def _data(c: dict) -> list[str]:
    problems = []
    names = [taskset["name"] for taskset in c["buffer"]["explorer_input"]["eval_tasksets"]]
    if len(set(names)) < len(names):
        problems.append(f"buffer.explorer_input.eval_tasksets are named {', '.join(names)}: scores are told apart by "
                        "name, so needed names that differ.")
    pipeline = c["data_processor"]["task_pipeline"]
    if pipeline["generator"] and pipeline["inputs"]:
        problems.append("data_processor.task_pipeline: generator and inputs exclude each other: set one.")
    return problems


NO_ACCURACY = ("format_reward", "reward_model")  # reward functions that do not say whether a task is solved


def _rewards(c: dict) -> list[str]:
    """Rules between reward functions and the models that they ask."""
    source, models = c["buffer"]["explorer_input"], c["explorer"]["auxiliary_models"]
    sets = [(f"eval_tasksets.{i}", taskset) for i, taskset in enumerate(source["eval_tasksets"])]
    chosen = {place: _functions(taskset, source) for place, taskset in sets}
    problems = [f"buffer.explorer_input.{place}: {' and '.join(functions)} do not say what is solved. Name a function "
                f"with a component `accuracy` in buffer.explorer_input.{place}.default_reward_fn_type."
                for place, functions in chosen.items() if functions and set(functions) <= set(NO_ACCURACY)]
    if c["algorithm"]["algorithm_type"] != "sft":
        sets.append(("taskset", source["taskset"]))
    asked = [(place, taskset["reward_fn_args"].get("model")) for place, taskset in sets
             if "reward_model" in _functions(taskset, source)]
    problems += [f"buffer.explorer_input.{place}: no reward function is named." for place, taskset in sets
                 if not _functions(taskset, source)]
    problems += [problem for place, name in asked if (problem := _model_asked(place, name, models))]
    if models and not asked and sets:
        problems.append("explorer.auxiliary_models: nothing asks them. Name reward_model among the functions of "
                        "buffer.explorer_input.default_reward_fn_type, or leave them out.")
    return problems + _auxiliary_models(models)


def _functions(taskset: dict, source: dict) -> list[str]:
    chosen = taskset["default_reward_fn_type"] or source["default_reward_fn_type"]
    return [chosen] if isinstance(chosen, str) else chosen


def _model_asked(place: str, name: str | None, models: list[dict]) -> str | None:
    """What is wrong with the model that a set's reward function asks. name: None for the only one there is."""
    names, key = [model["name"] for model in models], f"buffer.explorer_input.{place}.reward_fn_args.model"
    if not models:
        return (f"buffer.explorer_input.{place}: the reward function reward_model asks a model of "
                "explorer.auxiliary_models, which is empty. Add {model_path: ...} there.")
    if name is None and len(models) > 1:
        return f"{key}: explorer.auxiliary_models has {len(models)}; needed the name of one of them."
    if name is not None and name not in names:
        return f"{key}={name}: no model of explorer.auxiliary_models has that name.{nearest(name, filter(None, names))}"
    return None


def _auxiliary_models(models: list[dict]) -> list[str]:
    problems = [f"explorer.auxiliary_models.{i}.model_path: needed a Hugging Face directory, found null."
                for i, model in enumerate(models) if not model["model_path"]]
    names = [model["name"] for model in models]
    if len(models) > 1 and (None in names or len(set(names)) < len(names)):
        problems.append(f"explorer.auxiliary_models are named {', '.join(map(str, names))}: needed names that differ.")
    return problems
