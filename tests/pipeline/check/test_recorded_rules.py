"""What a stage must find in rows that another stage explored."""

import pytest

from ouroboros.pipeline.check.data import directories, unfit_rows
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.store import records, tables
from tests.configs import broken, changed, places
from tests.factories import row
from tests.golden.messages import wording

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


@pytest.mark.parametrize(("version", "fits"), [(None, False), (0, True), (3, False)])
def test_a_directory_of_experience_is_looked_at_before_a_run(tmp_path, version, fits):
    """Without steps, of one policy, and by weights of a trainer."""
    if version is not None:
        tables.write(tables.step_file(tmp_path, "rollouts", 1), records.Rollout, [
            row(records.Rollout, step=1, weights_version=version)])
    recipe = Recipe(changed({"mode": "train", "buffer.trainer_input.experience_buffer.path": str(tmp_path)}))
    key = "buffer.trainer_input.experience_buffer.path"
    found = directories(recipe)
    assert [one.key for one in found] == [key] * (not fits)
    if found:
        wording(found, key)
