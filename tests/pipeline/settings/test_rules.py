"""What must be true between settings, and names and secrets that only look like something else."""

import pytest

from ouroboros.operators.entropy import ENTROPY_LOSSES
from ouroboros.operators.generate import GENERATORS
from ouroboros.operators.kl import KL_ESTIMATORS
from ouroboros.operators.reward import REWARDS
from ouroboros.pipeline.settings.config import REWARDS as REWARD_NAMES
from ouroboros.pipeline.settings.config import WORKFLOWS as WORKFLOW_NAMES
from ouroboros.pipeline.settings.config import walk
from ouroboros.pipeline.settings.setting import about
from ouroboros.workflows.rewards import ISOLATING, OPENED
from ouroboros.workflows.single_turn import WORKFLOWS
from tests.configs import changed, check, composed, places

COMPONENTS = "rft: algorithm.advantage_fn_args.gdpo_reward_keys"
OPERATORS = "rft: data_processor.experience_pipeline.operators"
EVAL = composed().buffer.explorer_input.eval_tasksets[0]

PIPELINE = "data_processor.experience_pipeline.operators"


@pytest.mark.parametrize(("key", "value"), [
    ("model.model_path", "/x"), ("model.init.hidden_size", 48), ("model.init.num_key_value_heads", 3),
    ("model.max_model_len", 20), ("trainer.max_token_len_per_gpu", 35),  # prompt + response: 36
    ("algorithm.optimizer.betas", [0.9]), ("algorithm.optimizer.betas", [0.9, 1.0]), ("name", "a b"),
    ("project", ".."), ("checkpoint_root_dir", "/x{y}"), ("explorer.env_vars.A-B", "x"),
    ("explorer.env_vars.DEBUG", True), ("explorer.env_vars.PYTHONPATH", "x"), ("explorer.eval_interval", 10),
    ("explorer.env_vars.OPENAI_API_KEY", "hush"), ("monitor.monitor_args.api_key", "hush"),
    ("algorithm.policy_loss_fn_args.my_password", "hush"),
    ("buffer.explorer_input.eval_tasksets", [EVAL.but("name", "a"), EVAL.but("name", "a")])])
def test_a_rule_that_a_value_breaks_is_one_problem_of_its_key(key, value):
    without = {"buffer.explorer_input.eval_tasksets": []} if key == "explorer.eval_interval" else {}
    found = check(changed({key: value, **without}))
    assert places(found) == [key]
    assert "hush" not in found[0]


@pytest.mark.parametrize("key", ["explorer.max_timeout", "explorer.step_timeout_seconds", "synchronizer.sync_timeout",
                                 "trainer.step_timeout_seconds", "explorer.rollout_model.external.timeout"])
@pytest.mark.parametrize("seconds", [1e-9, 1e10])
def test_a_limit_of_time_that_nothing_can_meet_or_no_timer_holds_is_refused(key, seconds):
    assert places(check(changed({key: seconds}))) == [key]


@pytest.mark.parametrize(("key", "value"), [
    ("algorithm.repeat_times", 1), ("buffer.train_batch_size", 100), ("algorithm.advantage_fn", "remax"),
    ("buffer.explorer_input.taskset.repeat_times", 4),
    ("buffer.explorer_input.taskset.rollout_args.temperature", 0),
    ("buffer.explorer_input.taskset.rollout_args.top_k", 2000)])
def test_a_rule_of_stages_that_explore_names_the_stage(key, value):
    assert places(check(changed({key: value}))) == [f"rft: {key}"]


@pytest.mark.parametrize(("values", "expected"), [
    ({"model.top_p": 0.9}, ["rft: model.top_k"]), ({"model.min_p": 0.1}, ["rft: model.top_k"]),
    ({"model.top_k": 1025}, ["rft: model.top_k"]), ({"model.top_p": 0.9, "model.top_k": 1024}, []),
    ({"model.top_k": 50, "buffer.explorer_input.taskset.rollout_args.top_p": 0.5}, []),
    ({"model.top_k": 1}, ["rft: model.top_k"]), ({"model.top_k": 2}, []),
    ({"model.top_k": 50, "model.top_p": 0.02}, ["rft: model.top_p"]),  # the likeliest of 50 has a fiftieth at least
    ({"model.top_k": 50, "model.top_p": 0.021}, []), ({"model.top_k": 50, "model.min_p": 1}, ["rft: model.min_p"]),
    ({"buffer.explorer_input.taskset.rollout_args.top_k": 1},
     ["rft: buffer.explorer_input.taskset.rollout_args.top_k"]),
    ({"model.top_k": 50, "algorithm.enable_router_replay": True}, ["rft: algorithm.enable_router_replay"]),
    ({"buffer.explorer_input.taskset.reward_fn_args.answer_key": "solution"}, []),  # of a column, and no secret
    ({"algorithm.repeat_times": 1, "algorithm.advantage_fn": "reinforce"}, [])])  # which compares no group
def test_values_that_other_settings_allow_or_refuse(values, expected):
    assert places(check(changed(values))) == expected


@pytest.mark.parametrize(("values", "expected"), [
    ({"model.temperature": 1e5}, ["rft: model.temperature"]), ({"model.temperature": 1e-3}, ["rft: model.temperature"]),
    ({"model.temperature": 100}, []), ({"model.temperature": 0.01}, []),
    ({"buffer.explorer_input.taskset.rollout_args.temperature": 1e5},
     ["rft: buffer.explorer_input.taskset.rollout_args.temperature"]),
    ({"model.temperature": 1e5, "buffer.explorer_input.taskset.rollout_args.temperature": 1.0}, []),
    ({"algorithm.optimizer.lr": 0}, []), ({"algorithm.optimizer.lr": -1}, ["algorithm.optimizer.lr"]),
    *(({"algorithm.rollout_rejection.token_k1": bounds}, []) for bounds in ([1.5, 3.0], [1.0, 3.0], [0.5, 3.0])),
    ({"algorithm.rollout_rejection.token_k1": [0.0, 3.0]}, ["algorithm.rollout_rejection.token_k1"]),
    ({"algorithm.reward_weights": {"accuracy": 0}}, ["rft: algorithm.reward_weights"]),
    ({"algorithm.reward_weights": {"accuracy": 0.5}}, []),
    *(({PIPELINE: [{"name": "reward_shaping_mapper", "args": {"reward_shaping_configs": [
        {"stats_key": "accuracy", "op_type": kind, "weight": 0}]}}]},
       [f"{PIPELINE}.0.args.reward_shaping_configs.0.weight"]) for kind in ("ADD", "MUL", "DIV")),
    *(({PIPELINE: [{"name": "reward_filter", "args": given}]}, [f"{PIPELINE}.0.args"]) for given in ([1], 5, "x"))])
def test_settings_under_which_nothing_is_learned_are_refused(values, expected):
    rewarded = {"buffer.explorer_input.default_reward_fn_type": "accuracy_reward"}
    assert places(check(changed(rewarded | values))) == expected


def test_of_two_settings_the_one_to_change_is_named():
    assert places(check(changed({"model.max_model_len": 20000}))) == ["trainer.max_token_len_per_gpu"]
    assert places(check(changed({"data_processor.task_pipeline.inputs": ["a.jsonl"]}))) == [
        "data_processor.task_pipeline.generator"]


def test_names_that_are_checked_early_are_those_that_there_are():
    """pipeline/ imports neither operators nor workflows, so the names stand in two places."""
    leaves = dict(walk())
    assert set(REWARD_NAMES) == set(REWARDS) | set(OPENED) | set(ISOLATING)
    assert set(WORKFLOW_NAMES) == set(WORKFLOWS)
    for key, table, kind in (("algorithm.kl_loss_fn", KL_ESTIMATORS, "names"),
                             ("algorithm.kl_penalty_fn", KL_ESTIMATORS, "names"),
                             ("algorithm.entropy_loss_fn", ENTROPY_LOSSES, "names"),
                             ("data_processor.task_pipeline.generator", GENERATORS, "choices")):
        assert set(getattr(about(leaves[key]), kind)) == set(table)


@pytest.mark.parametrize(("values", "expected"), [
    ({"algorithm.policy_loss_fn": "dpo"}, ["algorithm.policy_loss_fn"]),
    # kto and ipo need pairs, too
    ({"algorithm": {"algorithm_type": "kto", "policy_loss_fn": "ppo"}},
     ["algorithm.policy_loss_fn", "algorithm.algorithm_type"]),
    ({"algorithm": {"algorithm_type": "ipo", "entropy_loss_fn": "mix"}},
     ["algorithm.entropy_loss_fn", "algorithm.algorithm_type"]),
    ({"mode": "train", "algorithm": {"policy_loss_fn": "mix"}}, ["algorithm.policy_loss_fn"]),
    ({"algorithm": {"entropy_loss_fn": "mix"}}, ["algorithm.entropy_loss_fn"]),
    # no teacher is asked; then no advantage is read
    ({"algorithm": {"policy_loss_fn": "forward_kl_topk"}}, ["algorithm.policy_loss_fn"]),
    ({"algorithm": {"algorithm_type": "gkd", "kl_penalty_fn": "k1", "advantage_fn_args": {"kl_coef": 2.0}}},
     ["algorithm.kl_penalty_fn", "algorithm.advantage_fn_args"])])
def test_losses_that_the_rows_of_a_stage_cannot_feed_are_refused(values, expected):
    stage = {key: value for key, value in values.items() if "." not in key}
    run_wide = {key: value for key, value in values.items() if "." in key}
    assert places(check(changed({**run_wide, "stages": [{"stage_name": "one", **stage}]}))) == expected


def test_a_setting_of_the_run_is_judged_in_the_stages_that_do_not_override_it():
    """The run has one rollout a task, which grpo could not compare; its only stage has four."""
    given = {"algorithm.repeat_times": 1, "stages": [{"stage_name": "a", "algorithm": {"repeat_times": 4}}]}
    assert check(changed(given)) == []
    both = changed({**given, "stages": [*given["stages"], {"stage_name": "b"}, {"stage_name": "c"}]})
    assert places(check(both)) == ["b, c: algorithm.repeat_times"]


@pytest.mark.parametrize(("values", "expected"), [
    ({"algorithm.advantage_fn": "gdpo", "algorithm.kl_penalty_fn": "k1"}, ["rft: algorithm.kl_penalty_fn"]),
    ({"algorithm.advantage_fn": "gdpo", "algorithm.reward_weights": {"a": 2.0}}, ["rft: algorithm.reward_weights"]),
    ({"algorithm.advantage_fn": "gdpo"}, []),
    *(({"algorithm.advantage_fn": "gdpo", "algorithm.advantage_fn_args": {"gdpo_reward_keys": keys}}, expected)
      for keys, expected in ((["accuracy", "format_score"], []), (["accuracy", "length"], [COMPONENTS]))),
    ({"algorithm.advantage_fn": "gdpo", "algorithm.advantage_fn_args": {"gdpo_reward_keys": ["length"]},
      "buffer.explorer_input.default_reward_fn_type": ["mine.parts:reward"]}, []),
    *(({"algorithm.advantage_fn": "gdpo", "data_processor.experience_pipeline.operators": [{"name": name}]}, expected)
      for name, expected in (("quality_reward", [OPERATORS]), ("diversity_reward", [OPERATORS]),
                             ("mine.parts:shape", [OPERATORS]), ("reward_filter", []))),
    ({"algorithm.algorithm_type": "remax", "algorithm.reward_weights": {"a": 2.0}}, ["rft: algorithm.reward_weights"]),
    ({"algorithm.greedy_baseline": True, "algorithm.reward_weights": {"a": 2.0}}, ["rft: algorithm.reward_weights"]),
    ({"algorithm.advantage_fn": "gigpo", "algorithm.reward_weights": {"a": 2.0}}, ["rft: algorithm.reward_weights"]),
    ({"algorithm.advantage_fn": "grpo", "algorithm.reward_weights": {"a": 2.0}}, []),
    ({"algorithm.optimizer.optimizer_type": "muon"}, []),
    ({"algorithm.optimizer.optimizer_type": "adamw", "algorithm.optimizer.fused": True}, []),
    ({"algorithm.optimizer.optimizer_type": "adamw8bit", "algorithm.optimizer.fused": True},
     ["algorithm.optimizer.fused"]),
    ({"trainer.critic.optimizer.optimizer_type": "adamw8bit", "trainer.critic.optimizer.fused": True},
     ["trainer.critic.optimizer.fused"]),
    ({"algorithm.optimizer.optimizer_type": "muon", "trainer.zero_stage": 3},
     ["algorithm.optimizer.optimizer_type"]),
    ({"algorithm.optimizer.optimizer_type": "muon", "trainer.offload_optimizer": True},
     ["algorithm.optimizer.optimizer_type"]),
    ({"trainer.critic.optimizer.optimizer_type": "muon", "trainer.zero_stage": 3},
     ["trainer.critic.optimizer.optimizer_type"]),
    ({"data_processor.task_pipeline.format.image_key": "images", "trainer.ranks": 2,
      "trainer.ulysses_sequence_parallel_size": 2}, ["rft: trainer.ulysses_sequence_parallel_size"]),
    ({"data_processor.task_pipeline.format.image_key": "images", "trainer.ranks": 2, "trainer.zero_stage": 3,
      "trainer.freeze_vision_tower": False}, []),
    ({"trainer.shuffle_mini_batches": True}, ["trainer.shuffle_mini_batches"]),
    ({"trainer.shuffle_mini_batches": True, "trainer.ppo_mini_batch_size": 4, "trainer.ppo_epochs": 2}, []),
    ({"trainer.reference_update.interval": 2, "trainer.reference_update.mix": 0.5}, []),
    ({"trainer.reference_update.interval": 2, "trainer.reference_update.mix": 0.5, "model.lora_configs": [{}]},
     ["trainer.reference_update.mix"]),
    ({"algorithm.rollout_rejection.seq_mean_k1": [2.0, 0.5]}, ["algorithm.rollout_rejection.seq_mean_k1"]),
    ({"algorithm.rollout_rejection.token_k2": 0}, ["algorithm.rollout_rejection.token_k2"])])
def test_passes_rejections_and_components_are_judged(values, expected):
    assert places(check(changed(values))) == expected
