"""A distillation of Trinity-RFT, whose teacher is an auxiliary model, as a recipe."""

import pytest

from tests.bridges import left_out_of_trinity as left_out
from tests.bridges import values_of_trinity as values
from tests.golden.messages import wording

DISTILLATION = """
algorithm: {algorithm_type: on_policy_distill, repeat_times: 4}
model: {model_path: small}
buffer: {batch_size: 8, explorer_input: {default_workflow_type: on_policy_distill_workflow, taskset: {path: a.jsonl}}}
explorer: {auxiliary_models: [{model_path: large, engine_num: 2}]}
"""


def test_the_auxiliary_model_of_a_distillation_is_the_teacher():
    found = values(DISTILLATION)
    assert found["model.teacher_model_path"] == "large"
    assert found["buffer.explorer_input.default_workflow_type"] == "simple_workflow"
    assert found["buffer.explorer_input.default_reward_fn_type"] == "accuracy_reward"
    assert not any(key.startswith("explorer.auxiliary_models") for key in found)
    wording(left_out(DISTILLATION)["explorer.auxiliary_models.0.engine_num"], "trainer's", "GPUs")


def test_of_a_stage_that_distils_the_teacher_is_the_stages():
    found = values("stages: [{stage_name: a, algorithm: {algorithm_type: jsd}, "
                   "explorer: {auxiliary_models: [{model_path: large}]}}]")
    assert found["stages.0.model.teacher_model_path"] == "large"


@pytest.mark.parametrize(("taskset", "stays"), [
    ("{}", True), ("{default_reward_fn_type: judge_reward}", True), ("{default_reward_fn_type: math_reward}", False),
    ("{default_reward_fn_type: math_reward, format: {workflow_key: w}}", True)])
def test_without_distillation_an_auxiliary_model_stays_one_that_somebody_may_ask(taskset, stays):
    found = values(f"{{buffer: {{batch_size: 8, explorer_input: {{taskset: {taskset}}}}}, "
                   "explorer: {auxiliary_models: [{model_path: large}]}}")
    assert ("explorer.auxiliary_models.0.model_path" in found) == stays
