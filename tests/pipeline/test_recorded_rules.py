"""What a stage must find in rows that another stage explored."""

import pytest

from pipeline.check.judge import compose
from pipeline.check.recorded_rules import problems
from pipeline.store.errors import ConfigError
from tests.configs import changed

RETRY = {"buffer": {"explorer_input": {"default_workflow_type": "retry_workflow"}}}


def found(look: dict, careful: dict, **of_look) -> list[str]:
    """Of a stage that explores with the settings `algorithm` look, and one that trains on it with those of careful."""
    return problems(changed({"stages": [
        {"stage_name": "look", "mode": "explore", "algorithm": look, **of_look},
        {"stage_name": "careful", "mode": "train", "algorithm": careful}]}))


def test_a_greedy_baseline_is_made_by_the_stage_that_explores():
    remax = {"algorithm_type": "remax"}
    (line,) = found({}, remax)
    assert line == ("stage 'careful': algorithm.advantage_fn=remax needs the column baseline_reward, the reward of a "
                    "greedy response to each task, which the rows lack. They have it with "
                    "stages.look.algorithm.greedy_baseline=true.")
    assert found({"greedy_baseline": True}, remax) == found(remax, remax) == []


def test_groups_are_those_of_the_stage_that_explores():
    """reinforce compares nothing, whatever its own repeat_times; grpo on groups of one would learn nothing."""
    assert found({"repeat_times": 1}, {"algorithm_type": "reinforce"}) == []
    assert found({}, {"algorithm_type": "grpo", "repeat_times": 1}) == []
    (line,) = found({"repeat_times": 1}, {"algorithm_type": "grpo"})
    assert line.startswith("stage 'careful': algorithm.advantage_fn=grpo compares the rollouts of a group, and the "
                           "rows are of groups of one. Needed stages.look.algorithm.repeat_times of at least 2")


def test_states_are_those_of_the_workflow_that_explored():
    (line,) = found({}, {"algorithm_type": "gigpo"})
    assert "the workflow of stages.look.buffer.explorer_input.taskset, simple_workflow, does not tell states" in line
    assert found({}, {"algorithm_type": "gigpo"}, **RETRY) == []


def test_a_composition_is_judged_by_it():
    with pytest.raises(ConfigError, match=r"They have it with stages.sft.algorithm.greedy_baseline=true"):
        compose(["stages.sft.mode=explore", "stages.sft.algorithm.algorithm_type=grpo", "stages.rft.mode=train",
                 "stages.rft.algorithm.algorithm_type=remax"])
