"""What a stage must find in rows that another stage explored."""

from pipeline.check.recorded_rules import unfit_rows
from pipeline.compose.recipe import Recipe
from tests.configs import broken, changed, places

RETRY = {"buffer": {"explorer_input": {"default_workflow_type": "retry_workflow"}}}


def found(look: dict, careful: dict, **of_look) -> list[str]:
    """Of a stage that explores with the settings `algorithm` look, and one that trains on it with those of careful."""
    return unfit_rows(Recipe(changed({"stages": [
        {"stage_name": "look", "mode": "explore", "algorithm": look, **of_look},
        {"stage_name": "careful", "mode": "train", "algorithm": careful}]})))


def test_a_greedy_baseline_is_made_by_the_stage_that_explores():
    remax = {"algorithm_type": "remax"}
    (problem,) = found({}, remax)
    assert places([problem]) == ["careful: algorithm.advantage_fn"]
    assert "stages.look.algorithm.greedy_baseline=true" in problem.do
    assert found({"greedy_baseline": True}, remax) == found(remax, remax) == []


def test_groups_are_those_of_the_stage_that_explores():
    """reinforce compares nothing, whatever its own repeat_times; grpo on groups of one would learn nothing."""
    assert found({"repeat_times": 1}, {"algorithm_type": "reinforce"}) == []
    assert found({}, {"algorithm_type": "grpo", "repeat_times": 1}) == []
    (problem,) = found({"repeat_times": 1}, {"algorithm_type": "grpo"})
    assert places([problem]) == ["careful: algorithm.advantage_fn"]
    assert "stages.look.algorithm.repeat_times" in problem


def test_states_are_those_of_the_workflow_that_explored():
    (problem,) = found({}, {"algorithm_type": "gigpo"})
    assert places([problem]) == ["careful: algorithm.advantage_fn"]
    assert "stages.look.buffer.explorer_input.taskset, simple_workflow" in problem
    assert found({}, {"algorithm_type": "gigpo"}, **RETRY) == []


def test_a_composition_is_judged_by_it():
    assert broken("stages.sft.mode=explore", "stages.sft.algorithm.algorithm_type=grpo", "stages.rft.mode=train",
                  "stages.rft.algorithm.algorithm_type=remax") == ["rft: algorithm.advantage_fn"]
