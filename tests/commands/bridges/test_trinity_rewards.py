"""Rewards and workflows of a Trinity-RFT configuration: the original's DAPO reward, and code that is not here."""

import pytest

from tests.bridges import from_trinity, left_out_of_trinity, values_of_trinity
from tests.golden.messages import wording

SET = "buffer.explorer_input.taskset"
PENALTY = "{enable_overlong_penalty: %s, penalty_factor: 1.0, max_response_length: 100, cache_length: 20}"
OF_ALL = """
buffer:
  explorer_input:
    default_workflow_type: math_workflow
    default_reward_fn_type: math_dapo_reward
    taskset: {path: /d, workflow_args: {use_base: true}, reward_fn_args: %s}
    eval_tasksets: [{name: e, path: /e, reward_fn_args: %s}]
"""
OF_SET = """
buffer:
  explorer_input:
    taskset: {path: /d, default_workflow_type: math_workflow, reward_fn_args: %s,
              default_reward_fn_type: math_dapo_reward}
"""


def test_the_reward_of_dapo_with_its_penalty():
    """There right is 1, wrong -1 and a cut response -1 more; with 1 and 0 the same shape has half the penalty: 0.5."""
    on = PENALTY % "true"
    for text in (OF_ALL % (on, on), OF_SET % on):
        found = values_of_trinity(text)
        assert found[f"{SET}.default_reward_fn_type"] == ["accuracy_reward", "overlong_penalty"]
        assert {key: found[key] for key in found if key.startswith(f"{SET}.reward_fn_args")} == {
            f"{SET}.reward_fn_args.penalty_factor": 0.5, f"{SET}.reward_fn_args.max_response_length": 100,
            f"{SET}.reward_fn_args.cache_length": 20}
    found = values_of_trinity(OF_ALL % (on, on))
    assert found["buffer.explorer_input.default_reward_fn_type"] == "accuracy_reward"
    assert not [key for key in found if "eval_tasksets" in key and "reward" in key]


STAGED = OF_SET + "stages: [{stage_name: a, buffer: {explorer_input: {taskset: {reward_fn_args: {%s}}}}}]"
OF_STAGE = f"stages.0.{SET}"


@pytest.mark.parametrize(("of_all", "of_stage", "expected"), [
    ("true", "penalty_factor: 0.5", {"reward_fn_args.penalty_factor": 0.25}),
    ("true", "cache_length: 30", {"reward_fn_args.cache_length": 30}),
    ("false", "penalty_factor: 0.5", {})])
def test_a_stages_penalty_is_laid_over_that_of_all(of_all, of_stage, expected):
    """Half the factor, as above: of 0.5 a stage's 0.25."""
    found = values_of_trinity(STAGED % (PENALTY % of_all, of_stage))
    assert {key: found[key] for key in found if key.startswith(OF_STAGE)} == {
        f"{OF_STAGE}.{key}": value for key, value in expected.items()}


def test_a_factor_that_is_no_number_is_left_out_rather_than_kept_whole():
    text = OF_SET % (PENALTY % "true").replace("1.0", "'${oc.env:FACTOR}'")
    key = f"{SET}.reward_fn_args.penalty_factor"
    wording(left_out_of_trinity(text)[key], "needed")
    assert key not in values_of_trinity(text)


@pytest.mark.parametrize(("of_all", "of_stage"), [("true", "false"), ("false", "true")])
def test_a_penalty_of_some_stages_is_to_be_written_by_hand(of_all, of_stage):
    text = STAGED % (PENALTY % of_all, f"enable_overlong_penalty: {of_stage}, cache_length: 30")
    found = {key for key, why in left_out_of_trinity(text).items() if why.startswith("there the stages differ")}
    assert found >= {f"{SET}.reward_fn_args.{name}" for name in ("enable_overlong_penalty", "penalty_factor",
                                                                 "max_response_length", "cache_length")}


def test_a_stages_argument_is_one_of_the_function_that_the_same_set_of_all_names():
    text = ("buffer: {explorer_input: {taskset: {path: /d, default_reward_fn_type: countdown_reward}}}\n"
            "stages: [{stage_name: a, buffer: {explorer_input: {taskset: {reward_fn_args: {format_score: 0.2, judge: x}"
            "}}}}]")
    assert values_of_trinity(text)[f"{OF_STAGE}.reward_fn_args.format_score"] == 0.2
    assert left_out_of_trinity(text)[f"{OF_STAGE}.reward_fn_args.judge"].startswith("'countdown_reward' has no")


def test_the_reward_of_dapo_without_a_penalty():
    off = PENALTY % "false"
    found = values_of_trinity(OF_SET % off)
    assert found[f"{SET}.default_reward_fn_type"] == "accuracy_reward"
    assert not [key for key in found if "reward_fn_args" in key]
    assert set(left_out_of_trinity(OF_SET % off)) == {f"{SET}.reward_fn_args.{name}" for name in (
        "enable_overlong_penalty", "penalty_factor", "max_response_length", "cache_length")}


@pytest.mark.parametrize(("below", "key", "why"), [
    ("default_workflow_type: math_workflow, workflow_args: {with_think: true}", "workflow_args.with_think",
     "'simple_workflow' has no argument 'with_think'."),
    ("default_reward_fn_type: accuracy_reward, reward_fn_args: {judge: x}", "reward_fn_args.judge",
     "'accuracy_reward' has no argument 'judge'."),
    ("default_workflow_type: email_workflow, reward_fn_args: {judge: true}", "reward_fn_args.judge",
     "'accuracy_reward' has no argument 'judge'"),
    # it takes these, or nobody knows whether it does
    *((f"{kind}: {name}, {arguments}: {{{key}: 3}}", f"{arguments}.{key}", None) for kind, name, arguments, key in (
        ("default_workflow_type", "retry_workflow", "workflow_args", "max_env_steps"),
        ("default_workflow_type", "'my.code:play'", "workflow_args", "anything"),
        ("default_workflow_type", "alfworld_workflow", "workflow_args", "max_env_steps"),
        ("default_reward_fn_type", "countdown_reward", "reward_fn_args", "format_score")))])
def test_an_argument_that_ours_does_not_take_is_left_out(below, key, why):
    text = f"buffer: {{explorer_input: {{taskset: {{path: /d, {below}}}}}}}"
    assert left_out_of_trinity(text).get(f"{SET}.{key}", "").startswith(why or "")
    assert (f"{SET}.{key}" in values_of_trinity(text)) == (why is None)


@pytest.mark.parametrize(("theirs", "ours"), [
    ("algorithm_type: grpo_verl", "grpo"), ("advantage_fn: opmd_verl", "opmd")])
def test_a_twin_that_is_only_computed_elsewhere_is_the_same(theirs, ours):
    key = theirs.partition(":")[0]
    assert values_of_trinity(f"algorithm: {{{theirs}}}")[f"algorithm.{key}"] == ours


def test_another_teacher_than_the_first_has_no_place():
    text = ("algorithm: {algorithm_type: on_policy_distill}\n"
            "explorer: {auxiliary_models: [{model_path: a, max_prompt_tokens: 5}, {model_path: b, seed: 1}]}")
    assert values_of_trinity(text)["model.teacher_model_path"] == "a"
    why = left_out_of_trinity(text)
    wording(why["explorer.auxiliary_models.1.model_path"], "teacher")
    wording(why["explorer.auxiliary_models.0.max_prompt_tokens"], "served")


def test_math_verify_of_rm_gallery_is_the_comparison_of_answers():
    """Another reward of it is a name that is not here, so that the recipe does not compose."""
    text = ("buffer: {{explorer_input: {{taskset: {{path: /d, default_reward_fn_type: rm_gallery_reward, "
            "reward_fn_args: {{reward_name: {}}}}}}}}}")
    place = ("buffer", "explorer_input", "taskset", "default_reward_fn_type")
    assert from_trinity(text.format("math_verify_reward")).value(*place) == "accuracy_reward"
    assert from_trinity(text.format("accuracy_and_style")).value(*place) == "rm_gallery_reward"
