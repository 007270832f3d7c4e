"""Reward functions and the models they ask: what is refused before anything runs."""

import pytest

from ouroboros.pipeline.check.judge import compose
from tests.configs import broken, changed, check, places

SOURCE = "buffer.explorer_input"
JUDGE = {"name": None, "model_path": "judge", "engine_num": 1, "tensor_parallel_size": 1, "dtype": "auto",
         "max_model_len": None, "max_token_len": 100}


def judged(*models: dict, function="reward_model", **taskset) -> dict:
    """Values with these auxiliary models for rollouts; the evaluation has a rule."""
    own = {f"{SOURCE}.taskset.{key}": value for key, value in taskset.items()}
    return {"explorer.auxiliary_models": [{**JUDGE, **model} for model in models],
            f"{SOURCE}.taskset.default_reward_fn_type": function, **own}


def test_several_reward_functions_are_a_list():
    key = f"{SOURCE}.default_reward_fn_type"
    assert check(changed({key: ["countdown_reward", "format_reward"]})) == []
    (problem,) = check(changed({key: ["countdown_reward", "format_rewrad"]}))
    assert (problem.key, problem.found) == (key, "format_rewrad")
    assert "'format_reward'?" in problem.needed
    config = compose([f"{key}=[countdown_reward,format_reward]"])
    assert config.buffer.explorer_input.default_reward_fn_type == ["countdown_reward", "format_reward"]
    nested = changed({f"{SOURCE}.taskset.default_reward_fn_type": ["format_reward", {}]})
    assert places(check(nested)) == [f"{SOURCE}.taskset.default_reward_fn_type.1"]


@pytest.mark.parametrize("values", [
    judged({}), judged({}, function=["countdown_reward", "reward_model"]), judged({"name": "a"}),
    judged({"name": "a"}, {"name": "b"}, reward_fn_args={"model": "b"}),
    {"explorer.auxiliary_models": [JUDGE], f"{SOURCE}.eval_tasksets.0.default_reward_fn_type":
        ["countdown_reward", "reward_model"]},
    {f"{SOURCE}.eval_tasksets.0.default_reward_fn_type": "format_reward"}])  # evaluated by its mean reward
def test_a_reward_model_is_asked_by_name_or_alone(values):
    assert check(changed(values)) == []


def punished(arguments: dict) -> dict:
    return {f"{SOURCE}.taskset.default_reward_fn_type": ["countdown_reward", "overlong_penalty"],
            f"{SOURCE}.taskset.reward_fn_args": arguments}


@pytest.mark.parametrize("arguments", [{}, {"cache_length": 4}, {"max_response_length": 10, "penalty_factor": 0.5}])
def test_a_penalty_on_length_stands_beside_a_reward(arguments):
    assert check(changed(punished(arguments))) == []


TASKS, MODELS = f"rft: {SOURCE}.taskset", "explorer.auxiliary_models"


@pytest.mark.parametrize(("values", "expected"), [
    (judged(), TASKS), (judged({"name": "a"}, {"name": "b"}), f"{TASKS}.reward_fn_args.model"),
    (judged({"name": "judge"}, reward_fn_args={"model": "jugde"}), f"{TASKS}.reward_fn_args.model"),
    (judged({"name": "a"}, {"name": "a"}, reward_fn_args={"model": "a"}), MODELS),
    (judged({"model_path": None}), f"{MODELS}.0.model_path"),
    (judged({"tensor_parallel_size": 2}), f"rft: {MODELS}.0.tensor_parallel_size"),
    (judged({"engine_nmu": 2}), f"{MODELS}.0.engine_nmu"),
    (punished({"max_response_length": 13}), f"{TASKS}.reward_fn_args.max_response_length"),  # responses have 12
    (punished({"cache_length": 12}), f"{TASKS}.reward_fn_args.cache_length"),
    (punished({"cache_length": 8, "max_response_length": 8}), f"{TASKS}.reward_fn_args.cache_length")])
def test_a_reward_that_could_not_be_given_is_refused(values, expected):
    assert places(check(changed(values))) == [expected]


@pytest.mark.parametrize(("values", "expected"), [
    ({f"{SOURCE}.taskset.reward_fn_args": {"compare": True}}, []),
    ({f"{SOURCE}.taskset.reward_fn_args": {"compare": True}, "stages.rft.algorithm.repeat_times": 1,
      "stages.rft.algorithm.advantage_fn": "reinforce"}, ["rft: algorithm.repeat_times"]),
    ({f"{SOURCE}.eval_tasksets.0.reward_fn_args": {"compare": True},
      f"{SOURCE}.eval_tasksets.0.default_reward_fn_type": "judge_reward"},
     [f"{SOURCE}.eval_tasksets.0.reward_fn_args.compare"])])
def test_a_judge_that_compares_needs_several_answers(values, expected):
    assert places(check(changed({f"{SOURCE}.taskset.default_reward_fn_type": "judge_reward", **values}))) == expected


def test_every_set_that_is_answered_needs_a_reward_function():
    assert places(check(changed({f"{SOURCE}.default_reward_fn_type": []}))) == [f"{SOURCE}.eval_tasksets.0", TASKS]


def test_models_that_no_stage_asks_are_refused_and_one_stage_is_enough():
    judge = "explorer.auxiliary_models=[{model_path: judge}]"
    assert broken(judge) == ["explorer.auxiliary_models"]
    asked = [judge, f"stages.rft.{SOURCE}.taskset.default_reward_fn_type=[countdown_reward,reward_model]"]
    assert compose(asked).explorer.auxiliary_models[0].model_path == "judge"
