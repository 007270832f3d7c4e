"""What must be true between settings, and names and secrets that only look like something else."""

import pytest

from operators.advantage import ADVANTAGES
from operators.entropy import ENTROPY_LOSSES
from operators.generate import GENERATORS
from operators.kl import KL_ESTIMATORS
from operators.loss import POLICY_LOSSES
from operators.reward import REWARDS
from pipeline.settings.config import REWARDS as REWARD_NAMES
from pipeline.settings.config import WORKFLOWS as WORKFLOW_NAMES
from pipeline.settings.config import walk
from pipeline.settings.setting import about
from tests.configs import changed, check, composed
from workflows.rewards import OPENED
from workflows.single_turn import WORKFLOWS

EVAL = composed()["buffer"]["explorer_input"]["eval_tasksets"][0]


@pytest.mark.parametrize(("key", "value", "words"), [
    ("model.model_path", "/x", "model.model_path and model.init.enable exclude each other"),
    ("model.init.hidden_size", 48, "needed a multiple of 32 x num_attention_heads"),
    ("model.init.num_key_value_heads", 3, "must divide"),
    ("model.max_model_len", 20, "model.max_model_len=20: prompt + response need 36"),
    ("trainer.max_token_len_per_gpu", 35, "prompt + response) has 36 tokens"),
    ("model.max_model_len", 20000, "prompt + response) has 20000 tokens"),
    ("algorithm.optimizer.betas", [0.9], "betas=[0.9]: needed two numbers"),
    ("algorithm.optimizer.betas", [0.9, 1.0], "less than 1"),
    ("algorithm.repeat_times", 1, "grpo compares the rollouts of a group"),
    ("buffer.train_batch_size", 100, "buffer.train_batch_size=100 neither divides"),
    ("buffer.explorer_input.taskset.repeat_times", 4, "follow algorithm.repeat_times=8: set that"),
    ("buffer.explorer_input.taskset.rollout_args.temperature", 0.5, "follow model.temperature=1.0"),
    ("data_processor.task_pipeline.inputs", ["a.jsonl"], "generator and inputs exclude each other"),
    ("name", "a b", "name='a b'"), ("project", "..", "project='..'"), ("checkpoint_root_dir", "/x{y}", "braces"),
    ("buffer.explorer_input.eval_tasksets", [{**EVAL, "name": "a"}, {**EVAL, "name": "a"}], "are named a, a: rows"),
    ("explorer.env_vars.A-B", "x", "explorer.env_vars.A-B: needed the name of an environment variable"),
    ("explorer.env_vars.DEBUG", True, "explorer.env_vars.DEBUG=true: needed a text or a number"),
    ("explorer.env_vars.PYTHONPATH", "x", "is set by the stage itself"),
    ("explorer.env_vars.OPENAI_API_KEY", "sk-1", "explorer.env_vars.OPENAI_API_KEY: a secret does not go into"),
    ("algorithm.advantage_fn", "remax", "advantage_fn=remax needs the reward of a greedy response to each task"),
    ("explorer.eval_interval", 10, "explorer.eval_interval=10: there is nothing to evaluate on"),
    ("monitor.monitor_args.api_key", "hush", "monitor.monitor_args.api_key: a secret does not go into"),
    ("algorithm.policy_loss_fn_args.my_password", "hush", "environment"),
])
def test_rules_between_settings(key, value, words):
    without = {"buffer.explorer_input.eval_tasksets": []} if key == "explorer.eval_interval" else {}
    (problem,) = check(changed({key: value, **without}))
    assert words in problem


def test_names_that_are_checked_early_are_those_that_there_are():
    """pipeline/ imports neither operators nor workflows, so the names stand in two places."""
    leaves = dict(walk())
    assert set(REWARD_NAMES) == set(REWARDS) | set(OPENED)
    assert set(WORKFLOW_NAMES) == set(WORKFLOWS)
    for key, table, kind in (("algorithm.advantage_fn", ADVANTAGES, "names"),
                             ("algorithm.policy_loss_fn", POLICY_LOSSES, "names"),
                             ("algorithm.kl_loss_fn", KL_ESTIMATORS, "names"),
                             ("algorithm.kl_penalty_fn", KL_ESTIMATORS, "names"),
                             ("algorithm.entropy_loss_fn", ENTROPY_LOSSES, "names"),
                             ("data_processor.task_pipeline.generator", GENERATORS, "choices")):
        assert set(getattr(about(leaves[key]), kind)) == set(table)


def test_an_argument_that_names_a_column_is_no_secret():
    assert check(changed({"buffer.explorer_input.taskset.reward_fn_args.answer_key": "solution"})) == []


def test_rollouts_without_a_group_are_fine_where_none_is_compared():
    assert check(changed({"algorithm.repeat_times": 1, "algorithm.advantage_fn": "reinforce"})) == []


PAIRS_WORDS = "dpo, ipo, kto compare pairs of responses"


@pytest.mark.parametrize(("values", "words"), [
    ({"algorithm.policy_loss_fn": "dpo"}, f"policy_loss_fn=dpo with algorithm.algorithm_type=grpo: {PAIRS_WORDS}"),
    ({"algorithm": {"algorithm_type": "kto", "policy_loss_fn": "ppo"}}, f"algorithm_type=kto: {PAIRS_WORDS}"),
    ({"algorithm": {"algorithm_type": "ipo", "entropy_loss_fn": "mix"}}, "pairs hold no rows of an expert"),
    ({"mode": "train", "algorithm": {"policy_loss_fn": "mix"}}, "policy_loss_fn=mix needs rows of an expert"),
    ({"algorithm": {"entropy_loss_fn": "mix"}}, "entropy_loss_fn=mix needs rows of an expert"),
])
def test_losses_that_the_rows_of_a_stage_cannot_feed_are_refused_before_it_runs(values, words):
    stage = {key: value for key, value in values.items() if "." not in key}
    run_wide = {key: value for key, value in values.items() if "." in key}
    found = check(changed({**run_wide, "stages": [{"stage_name": "one", **stage}]}))
    assert any(words in problem for problem in found), found


def test_a_setting_of_the_run_that_every_stage_says_otherwise_is_not_judged():
    """The run says one rollout a task, which grpo could not compare; its only stage says four."""
    given = {"algorithm.repeat_times": 1, "stages": [{"stage_name": "a", "algorithm": {"repeat_times": 4}}]}
    assert check(changed(given)) == []
    both = changed({**given, "stages": [*given["stages"], {"stage_name": "b"}, {"stage_name": "c"}]})
    (problem,) = check(both)
    assert problem.startswith("stages 'b', 'c': algorithm.repeat_times=1: grpo compares")
