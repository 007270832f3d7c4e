"""Reward functions and the models they ask: what is refused before anything runs."""

import pytest

from pipeline.check.judge import compose
from pipeline.settings.arguments.users import batch_parameters
from tests.configs import changed, check, refused

SOURCE = "buffer.explorer_input"
JUDGE = {"name": None, "model_path": "judge", "engine_num": 1, "tensor_parallel_size": 1, "dtype": "auto",
         "max_model_len": None, "max_token_len": 100}


def judged(*models: dict, function="reward_model", **taskset) -> dict:
    """Values with these auxiliary models for rollouts; the evaluation has a rule."""
    own = {f"{SOURCE}.taskset.{key}": value for key, value in taskset.items()}
    return {"explorer.auxiliary_models": [{**JUDGE, **model} for model in models],
            f"{SOURCE}.taskset.default_reward_fn_type": function, **own}


def test_several_reward_functions_are_a_list():
    assert check(changed({f"{SOURCE}.default_reward_fn_type": ["countdown_reward", "format_reward"]})) == []
    (problem,) = check(changed({f"{SOURCE}.default_reward_fn_type": ["countdown_reward", "format_rewrad"]}))
    assert "default_reward_fn_type=format_rewrad: needed one of " in problem
    assert "Did you mean 'format_reward'?" in problem
    config = compose([f"{SOURCE}.default_reward_fn_type=[countdown_reward,format_reward]"])
    assert config["buffer"]["explorer_input"]["default_reward_fn_type"] == ["countdown_reward", "format_reward"]
    (problem,) = check(changed({f"{SOURCE}.taskset.default_reward_fn_type": ["format_reward", {}]}))
    assert "default_reward_fn_type.1': needed a text, found a mapping" in problem


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


@pytest.mark.parametrize(("values", "problem"), [
    (judged(), "taskset: the reward function reward_model asks a model of explorer.auxiliary_models, which is empty"),
    (judged({"name": "a"}, {"name": "b"}), "reward_fn_args.model: explorer.auxiliary_models has 2; needed the name"),
    (judged({"name": "judge"}, reward_fn_args={"model": "jugde"}), "has that name. Did you mean 'judge'?"),
    (judged({"name": "a"}, {"name": "a"}, reward_fn_args={"model": "a"}), "are named a, a: needed names that differ"),
    (judged({"model_path": None}), "auxiliary_models.0.model_path: needed a Hugging Face directory, found null"),
    (judged({"tensor_parallel_size": 2}), "tensor_parallel_size=2: needed at most 1"),
    (judged({"engine_nmu": 2}), "unknown key 'explorer.auxiliary_models.0.engine_nmu'"),
    ({f"{SOURCE}.default_reward_fn_type": []}, "taskset: no reward function is named"),
    (punished({"max_response_length": 13}), "length=13: a response is cut at model.max_response_tokens=12"),
    (punished({"cache_length": 12}), "cache_length=12: needed between 0 and max_response_length=12"),
    (punished({"cache_length": 8, "max_response_length": 8}), "cache_length=8: needed between 0 and max_response_l")])
def test_a_reward_that_could_not_be_given_is_told_before_anything_runs(values, problem):
    assert problem in "\n".join(check(changed(values)))


@pytest.mark.parametrize(("required", "taken"), [
    (["response", "answer"], {}), ([], {}), (["completions"], {"completions": "responses"}),
    (["responses", "answers"], {"responses": "responses", "answers": "answers"}),
    (["prompts", "completions", "ground_truth", "scale"],
     {"prompts": "prompts", "completions": "responses", "ground_truth": "answers"}),
    (["prompts", "completions", "completion_ids"], {"prompts": "prompts", "completions": "responses"})])
def test_a_function_of_all_responses_is_told_by_the_names_of_its_parameters(required, taken):
    assert batch_parameters(required) == taken


def test_models_that_no_stage_asks_are_refused_and_one_stage_is_enough():
    judge = "explorer.auxiliary_models=[{model_path: judge}]"
    assert "explorer.auxiliary_models: nothing asks them. Name reward_model among" in refused(judge)
    asked = [judge, f"stages.rft.{SOURCE}.taskset.default_reward_fn_type=[countdown_reward,reward_model]"]
    assert compose(asked)["explorer"]["auxiliary_models"][0]["model_path"] == "judge"
