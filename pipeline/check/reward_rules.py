"""Rules between reward functions, the task sets that use them, and `explorer.auxiliary_models`."""

from pipeline.compose.stage_settings import effective, entries
from pipeline.plan.modes import kind_of
from pipeline.settings.arguments.answers import OverlongPenalty
from pipeline.settings.data import eval_places, train_places
from pipeline.store.errors import nearest

# reward functions that do not report whether a task is solved
NO_ACCURACY = ("format_reward", "overlong_penalty", "reward_model")


def broken_reward_rules(c: dict) -> list[str]:
    """Lists every broken rule, one line each. c: the settings of the whole run, or of one stage."""
    source, models = c["buffer"]["explorer_input"], c["explorer"]["auxiliary_models"]
    sets = eval_places(source)
    problems = []
    if kind_of(c) in ("rft", "rollout"):
        sets += train_places(source)
        if c["algorithm"]["max_resample_rounds"] and c["algorithm"]["resample_metric"] == "accuracy":
            problems += _resampled_blindly(source)
    problems += [f"buffer.explorer_input.{place}: no reward function is named." for place, taskset in sets
                 if not reward_functions(taskset, source)]
    asked = [(place, taskset["reward_fn_args"].get("model")) for place, taskset in sets
             if "reward_model" in reward_functions(taskset, source)]
    problems += [problem for place, name in asked if (problem := _model_asked(place, name, models))]
    problems += [problem for place, taskset in sets if "overlong_penalty" in reward_functions(taskset, source)
                 for problem in _overlong(place, taskset["reward_fn_args"], c["model"]["max_response_tokens"])]
    return problems + _auxiliary_models(models)


def unasked_models(config: dict) -> list[str]:
    """Returns the line for auxiliary models of a run that no stage uses: they would occupy GPUs for nothing."""
    stages = [effective(config, entry) for entry in entries(config)]
    sources = [stage["buffer"]["explorer_input"] for stage in stages]
    sets = [(taskset, source) for source in sources for _, taskset in [*train_places(source), *eval_places(source)]]
    if not any(stage["explorer"]["auxiliary_models"] for stage in stages) or any(
            "reward_model" in reward_functions(taskset, source) for taskset, source in sets):
        return []
    return ["explorer.auxiliary_models: nothing asks them. Name reward_model among the functions of "
            "buffer.explorer_input.default_reward_fn_type, or leave them out."]


def reward_functions(taskset: dict, source: dict) -> list[str]:
    """Returns the reward functions of a task set: its own, else those of the section explorer_input."""
    chosen = taskset["default_reward_fn_type"] or source["default_reward_fn_type"]
    return [chosen] if isinstance(chosen, str) else chosen


def _model_asked(place: str, name: str | None, models: list[dict]) -> str | None:
    """Checks the model that a set's reward function queries. name: None for the only model."""
    names, key = [model["name"] for model in models], f"buffer.explorer_input.{place}.reward_fn_args.model"
    if not models:
        return (f"buffer.explorer_input.{place}: the reward function reward_model asks a model of "
                "explorer.auxiliary_models, which is empty. Add {model_path: ...} there.")
    if name is None and len(models) > 1:
        return f"{key}: explorer.auxiliary_models has {len(models)}; needed the name of one of them."
    if name is not None and name not in names:
        return f"{key}={name}: no model of explorer.auxiliary_models has that name.{nearest(name, filter(None, names))}"
    return None


def _resampled_blindly(source: dict) -> list[str]:
    """Lists training sets whose groups are compared by accuracy although no reward function reports it."""
    return [f"algorithm.resample_metric=accuracy: {' and '.join(functions)} of buffer.explorer_input.{place} do not "
            "say what is solved. Name a function with a component `accuracy`, or set resample_metric=reward."
            for place, taskset in train_places(source)
            if set(functions := reward_functions(taskset, source)) <= set(NO_ACCURACY)]


def _overlong(place: str, given: dict, longest: int) -> list[str]:
    """Checks the arguments of a set's overlong penalty. longest: tokens of the longest response."""
    key, most = f"buffer.explorer_input.{place}.reward_fn_args", given.get("max_response_length")
    cache = given.get("cache_length")
    if OverlongPenalty.wrong_values(key, given):  # reported with all other arguments
        return []
    if most and most > longest:
        return [f"{key}.max_response_length={most}: a response is cut at model.max_response_tokens={longest}; "
                "needed a number of tokens from 2 up to that, or null, which is that."]
    if cache and cache >= (most or longest):
        return [f"{key}.cache_length={cache}: needed between 0 and max_response_length={most or longest}, both "
                "excluded: the last tokens, in which the penalty grows."]
    return []


def _auxiliary_models(models: list[dict]) -> list[str]:
    problems = [f"explorer.auxiliary_models.{i}.model_path: needed a Hugging Face directory, found null."
                for i, model in enumerate(models) if not model["model_path"]]
    names = [model["name"] for model in models]
    if len(models) > 1 and (None in names or len(set(names)) < len(names)):
        problems.append(f"explorer.auxiliary_models are named {', '.join(map(str, names))}: needed names that differ.")
    return problems
