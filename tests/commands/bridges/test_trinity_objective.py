"""Losses that Trinity-RFT's algorithms have where a configuration says nothing: the recipe says them."""

import pytest

from ouroboros.commands.bridges.tables import table
from ouroboros.pipeline.settings.algorithms import ours
from tests.bridges import from_trinity
from tests.bridges import values_of_trinity as values

TASKS = "\nbuffer: {explorer_input: {taskset: {path: t.jsonl}}}\n"
# default_config of trinity/algorithm/algorithm.py in 0.6.0, and the validator's k2 where it names none
WITH_KL = ("ppo", "grpo", "reinforceplusplus", "rloo", "opmd", "topr", "cispo", "gspo", "sapo", "mix", "mix_chord",
           "rec", "multi_step_grpo", "gigpo", "dpo")
WITHOUT_KL = ("dapo", "asymre", "sppo", "raft", "on_policy_distill", "jsd", "sft", "cpt")


def test_a_configuration_that_names_no_algorithm_has_the_kl_loss_of_ppo():
    found = values(TASKS)
    assert (found["algorithm.algorithm_type"], found["algorithm.kl_loss_fn"]) == ("ppo", "k2")


@pytest.mark.parametrize(("said", "kind", "coefficient"), [
    *((name, "k2", 0.001) for name in WITH_KL),  # a silent one has the original's
    ("grpo, kl_loss_fn: none", "none", None), ("grpo, kl_loss_fn: low_var_kl", "low_var_kl", None),
    ("grpo, kl_loss_fn_args: {kl_coef: 0.01}", "k2", 0.01), ("grpo, kl_loss_fn: null", "k2", 0.001)])
def test_what_a_configuration_says_of_the_kl_loss_wins(said, kind, coefficient):
    found = values(f"algorithm: {{algorithm_type: {said}}}{TASKS}")
    assert found["algorithm.kl_loss_fn"] == kind
    assert found.get("algorithm.kl_loss_fn_args.kl_coef") == coefficient


@pytest.mark.parametrize(("said", "mode"), [
    ("algorithm_type: gspo", "token-mean"), ("algorithm_type: sapo", "token-mean"),
    ("algorithm_type: grpo, policy_loss_fn: gspo", "token-mean"), ("algorithm_type: grpo", None),
    ("algorithm_type: gspo, loss_agg_mode: seq-mean-token-mean", "seq-mean-token-mean"),
    ("algorithm_type: gspo, policy_loss_fn_args: {loss_agg_mode: seq-mean-token-sum}", "seq-mean-token-sum"),
    ("algorithm_type: gspo, policy_loss_fn: ppo", None)])
def test_losses_over_responses_are_means_over_tokens_there(said, mode):
    assert values(f"algorithm: {{{said}}}{TASKS}").get("algorithm.loss_agg_mode") == mode


def test_dapo_clips_evenly_there_and_draws_no_fresh_tasks():
    found = values(f"algorithm: {{algorithm_type: dapo, policy_loss_fn_args: {{clip_range_high: 0.28}}}}{TASKS}")
    assert found["algorithm.policy_loss_fn_args.clip_range_low"] == 0.2
    assert found["algorithm.policy_loss_fn_args.clip_range_high"] == 0.28
    assert found["algorithm.max_resample_rounds"] == 0


def test_each_stage_has_the_losses_of_its_own_algorithm():
    found = values("stages:\n- {stage_name: sft, algorithm: {algorithm_type: sft}}\n"
                   "- {stage_name: rl, algorithm: {algorithm_type: gspo}}\n"
                   "- {stage_name: last, algorithm: {algorithm_type: grpo, kl_loss_fn: none}}" + TASKS)
    of_stages = {key: value for key, value in found.items() if "kl_loss" in key or "agg" in key}
    assert of_stages == {"stages.1.algorithm.kl_loss_fn": "k2", "stages.1.algorithm.kl_loss_fn_args.kl_coef": 0.001,
                         "stages.1.algorithm.loss_agg_mode": "token-mean", "stages.2.algorithm.kl_loss_fn": "none"}


def test_a_kl_loss_of_all_holds_for_a_stage():
    found = values("algorithm: {kl_loss_fn: k3}\nstages: [{stage_name: rl, algorithm: {algorithm_type: grpo}}]" + TASKS)
    assert "stages.0.algorithm.kl_loss_fn" not in found


def test_an_auxiliary_models_list_without_models_takes_no_gpu():
    made = from_trinity("algorithm: {algorithm_type: grpo}\ncluster: {node_num: 1, gpu_per_node: 8}\n"
                        "explorer: {auxiliary_models: [], rollout_model: {engine_num: 2}}" + TASKS)
    assert made.value("trainer", "ranks") == 6


def test_the_table_names_algorithms_of_ours():
    assert set(table("trinity")["objective"]) <= set(ours())
