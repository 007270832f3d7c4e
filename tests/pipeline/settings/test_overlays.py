"""Stages over the global settings: merged key by key; an algorithm's own parts; arguments stay with their function."""

import pytest

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.compose.recipe import before, effective, entries
from ouroboros.pipeline.settings import algorithms
from ouroboros.pipeline.settings.config import Algorithm
from tests.configs import broken, composed


def test_merging_is_by_key_and_lists_are_replaced():
    given = {"model": {"lora_configs": [{"lora_rank": 2}], "max_model_len": None}, "explorer": {"env_vars": {"B": "2"}}}
    base = composed().but("explorer.env_vars", {"A": "1"})
    made = base.merged(given)
    assert made.model.lora_configs[0].lora_rank == 2
    assert (made.model.max_model_len, made.explorer.env_vars) == (None, {"A": "1", "B": "2"})
    assert made.model.max_prompt_tokens == base.model.max_prompt_tokens
    assert (base.model.lora_configs, base.explorer.env_vars) == ([], {"A": "1"})


def test_without_after_a_stage_comes_after_the_one_above():
    assert before({}, []) == []
    assert before({}, ["a", "b"]) == ["b"]
    assert before({"after": "a"}, ["a", "b"]) == ["a"]
    assert before({"after": []}, ["a", "b"]) == []


def test_a_recipe_without_stages_is_one():
    config = compose([])
    assert entries(config.but("stages", [])) == [{"stage_name": "rft"}]
    assert [e["stage_name"] for e in entries(config)] == ["sft", "rft"]


@pytest.mark.parametrize(("stages", "expected"), [
    ("[{stage_name: a, after: b},{stage_name: b}]", ["a: after"]),
    ("[{stage_name: a},{stage_name: b, after: {a: 1}}]", ["b: after"]),
    ("[{stage_name: x},{stage_name: y, after: [x,x]}]", ["y: after"]),
    ("[{stage_name: a, name: x}]", ["a: name"]), ("[{stage_name: a, algorithm: sft}]", ["a: algorithm"]),
    ("[{stage_name: a, buffer: {batch_size: big}}]", ["a: buffer.batch_size"]),
    ("[{stage_name: x, seed: a, algorithm: {algorithm_type: grppo}}]", ["x: algorithm.algorithm_type", "x: seed"]),
    ("3", ["stages"]), ("[{stage_name: x},3]", ["stages.1"]), ("[{stage_name: x},{stage_name: x}]", ["x: stage_name"]),
    ("[{stage_name: tasks}]", ["tasks: stage_name"]), ("[{stage_name: bench}]", ["bench: stage_name"]),
    ("[{stage_name: x},{stage_name: evaluate_x}]", ["evaluate_x: stage_name"]),  # the name of an evaluation
    ("[{stage_name: evaluate_x},{stage_name: x}]", ["x: stage_name"])])
def test_a_problem_of_a_stage_names_stage_and_key(stages, expected):
    assert broken(f"stages={stages}") == expected


def test_repeat_times_is_the_algorithms_own_unless_it_is_given():
    """Faults B1 of the original: its own 8 never applied, and a plain grpo compared groups of one."""
    (stage,) = entries(composed().but("stages", []))
    plain = compose(["algorithm.repeat_times=null"])
    assert plain.algorithm.repeat_times is None
    assert effective(plain, stage).algorithm.repeat_times == 8
    assert effective(compose(["algorithm.repeat_times=4"]), stage).algorithm.repeat_times == 4


def test_arguments_are_merged_over_the_algorithms_own(monkeypatch):
    """Fault B2 of the original: one argument given dropped all the others."""
    own = {"algorithm_type": "x", "policy_loss_fn": "ppo", "policy_loss_fn_args": {"clip_range_low": 0.1, "c": 3}}
    monkeypatch.setattr(algorithms, "parts", lambda name: own)
    section = Algorithm(policy_loss_fn_args={"clip_range_low": 0.4})
    assert algorithms.filled(section).policy_loss_fn_args == {"clip_range_low": 0.4, "c": 3}
    other = section.but("policy_loss_fn", "other")
    assert algorithms.filled(other).policy_loss_fn_args == {"clip_range_low": 0.4}


def test_a_stage_with_another_function_does_not_inherit_arguments_of_the_first():
    config = compose(["stages.rft.algorithm.advantage_fn=reinforce", "algorithm.advantage_fn_args.epsilon=1e-3",
                      "algorithm.policy_loss_fn_args.clip_range_low=0.1"])
    sft, rft = (effective(config, s).algorithm for s in config.stages)
    assert rft.advantage_fn_args == {}
    assert rft.policy_loss_fn_args == {"clip_range_low": 0.1}
    assert sft.policy_loss_fn_args == {}
    assert config.algorithm.advantage_fn_args == {"epsilon": 1e-3}


def test_an_algorithm_can_be_chosen_as_a_group():
    assert compose(["algorithm=sft", "stages=[]"]).algorithm.algorithm_type == "sft"


@pytest.mark.parametrize("name", algorithms.names())
def test_a_shipped_algorithm_has_only_parts_that_exist(name):
    parts = algorithms.parts(name)
    assert parts["algorithm_type"] == name
    assert set(parts) <= set(Algorithm.model_fields)
