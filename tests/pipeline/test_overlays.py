"""Stages over the global settings: merged key by key; an algorithm's own parts; arguments stay with their function."""

import pytest

from pipeline.check.judge import compose
from pipeline.compose.stage_settings import before, effective, entries, merge
from pipeline.settings import algorithms
from pipeline.settings.config import Algorithm
from pipeline.store.errors import ConfigError


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(list(overrides))
    return str(caught.value)


def test_merging_is_by_key_and_lists_are_replaced():
    base = {"a": {"x": 1, "y": [1, 2]}, "b": 3}
    assert merge(base, {"a": {"y": [9], "z": None}}) == {"a": {"x": 1, "y": [9], "z": None}, "b": 3}
    assert base == {"a": {"x": 1, "y": [1, 2]}, "b": 3}


def test_without_after_a_stage_comes_after_the_one_above():
    assert before({}, []) == []
    assert before({}, ["a", "b"]) == ["b"]
    assert before({"after": "a"}, ["a", "b"]) == ["a"]
    assert before({"after": []}, ["a", "b"]) == []


def test_a_recipe_without_stages_is_one():
    config = compose([])
    assert entries({**config, "stages": []}) == [{"stage_name": "rft"}]
    assert [e["stage_name"] for e in entries(config)] == ["sft", "rft"]


@pytest.mark.parametrize(("stages", "words"), [
    ("[{stage_name: a, after: b},{stage_name: b}]", "stage 'a': after=b: no stage of that name stands above it."),
    ("[{stage_name: a},{stage_name: b, after: {a: 1}}]", "stage 'b': after={'a': 1}: needed the name of a stage"),
    ("[{stage_name: a, name: x}]", "stage 'a': name is a setting of the whole run"),
    ("[{stage_name: a, algorithm: sft}]", "stage 'a': key 'algorithm': needed a mapping of settings, found the text"),
    ("[{stage_name: a, buffer: {batch_size: big}}]", "stage 'a': key 'buffer.batch_size': needed a whole number"),
])
def test_what_is_wrong_with_a_stage_names_it(stages, words):
    assert words in refused(f"stages={stages}")


# -------------------------------------------------------------------------------------------- the algorithm's own parts


def test_repeat_times_is_the_algorithms_own_unless_it_is_given():
    """Faults B1 of the original: its own 8 never applied, and a plain grpo compared groups of one."""
    (stage,) = entries({**compose([]), "stages": []})
    plain = compose(["algorithm.repeat_times=null"])
    assert plain["algorithm"]["repeat_times"] is None
    assert effective(plain, stage)["algorithm"]["repeat_times"] == 8
    assert effective(compose(["algorithm.repeat_times=4"]), stage)["algorithm"]["repeat_times"] == 4


def test_arguments_are_merged_over_the_algorithms_own(monkeypatch):
    """Fault B2 of the original: one argument given dropped all the others."""
    own = {"algorithm_type": "x", "policy_loss_fn": "ppo", "policy_loss_fn_args": {"clip_range_low": 0.1, "c": 3}}
    monkeypatch.setattr(algorithms, "parts", lambda name: own)
    section = {"algorithm_type": "x", "policy_loss_fn": None, "policy_loss_fn_args": {"clip_range_low": 0.4}}
    assert algorithms.filled(section)["policy_loss_fn_args"] == {"clip_range_low": 0.4, "c": 3}
    assert algorithms.filled({**section, "policy_loss_fn": "other"})["policy_loss_fn_args"] == {"clip_range_low": 0.4}


def test_a_stage_with_another_function_does_not_inherit_arguments_of_the_first():
    config = compose(["stages.rft.algorithm.advantage_fn=reinforce", "algorithm.advantage_fn_args.epsilon=1e-3",
                      "algorithm.policy_loss_fn_args.clip_range_low=0.1"])
    sft, rft = (effective(config, s)["algorithm"] for s in config["stages"])
    assert rft["advantage_fn_args"] == {}
    assert rft["policy_loss_fn_args"] == {"clip_range_low": 0.1}
    assert sft["policy_loss_fn_args"] == {}
    assert config["algorithm"]["advantage_fn_args"] == {"epsilon": 1e-3}


def test_an_algorithm_can_be_chosen_as_a_group():
    assert compose(["algorithm=sft", "stages=[]"])["algorithm"]["algorithm_type"] == "sft"


@pytest.mark.parametrize("name", algorithms.names())
def test_a_shipped_algorithm_has_only_parts_that_exist(name):
    parts = algorithms.parts(name)
    assert parts["algorithm_type"] == name
    assert set(parts) <= set(Algorithm.model_fields)


@pytest.mark.parametrize(("override", "words"), [
    ("stages=3", "key 'stages': needed a list, found 3"),
    ("stages=[{stage_name: x},3]", "needed a mapping, found 3"),
    ("stages=[{stage_name: x},{stage_name: x}]", "stage 'x': two entries of `stages` have the name 'x'"),
    ("stages=[{stage_name: x, seed: a, algorithm: {algorithm_type: grppo}}]", "Did you mean 'grpo'?"),
    ("stages=[{stage_name: x},{stage_name: y, after: [x,x]}]", "stage 'y': after=[x, x]: names a stage twice"),
    ("stages=[{stage_name: tasks}]", "stage 'tasks': a run gives this name to a stage that it adds; needed another"),
    ("stages=[{stage_name: bench}]", "stage 'bench': a run gives this name to a stage that it adds; needed another"),
    ("stages=[{stage_name: x},{stage_name: evaluate_x}]", "'evaluate_x': 'evaluate_x' is the evaluation of 'x'"),
    ("stages=[{stage_name: evaluate_x},{stage_name: x}]", "'x': 'evaluate_x' is the evaluation of 'x'"),
    ("stages.sft={seed: 3}", "needed a key of the stage, stages.sft.key=value"),
])
def test_what_is_no_stage_is_told_without_a_traceback(override, words):
    assert words in refused(override)


@pytest.mark.parametrize(("content", "words"), [
    (b"\xff\xfe\x00", " is no YAML"), (b"seed: 2\nname: ${oc.env:HOME", ", line 2: key 'name': '${' without its '}'"),
])
def test_a_recipe_that_cannot_be_read_is_named(tmp_path, content, words):
    (tmp_path / "r.yaml").write_bytes(content)
    assert f"recipe={tmp_path / 'r.yaml'}{words}" in refused(f"recipe='{tmp_path / 'r.yaml'}'")
