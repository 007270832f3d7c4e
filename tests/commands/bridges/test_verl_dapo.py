"""DAPO scripts: the algorithm, dynamic sampling, the penalty on overlong responses."""

import pytest

from tests.bridges import from_verl, launch, written

GROUPS = "algorithm.filter_groups"
ROUNDS = "algorithm.max_resample_rounds"
BUFFER = "reward_model.overlong_buffer"
TASKS = "buffer.explorer_input.tasksets.0.reward_fn_args"
GRPO = ("algorithm.adv_estimator=grpo", "data.train_files=/d/dapo.parquet")


def dapo(*overrides: str) -> str:
    return launch(*GRPO, *overrides).replace("verl.trainer.main_ppo", "recipe.dapo.main_dapo")


@pytest.mark.parametrize(("script", "algorithm"), [
    (dapo(), "dapo"), (launch(*GRPO, f"{GROUPS}.enable=True"), "dapo"), (launch(*GRPO), "grpo"),
    (launch(*GRPO, "reward_model.reward_manager=dapo"), "grpo"), (launch(*GRPO, f"{GROUPS}.enable=False"), "grpo"),
    (launch("algorithm.adv_estimator=rloo", f"{GROUPS}.enable=True"), "rloo")])
def test_the_program_or_its_sampling_makes_it_dapo(script, algorithm):
    made = from_verl(script)
    assert written(made)["algorithm.algorithm_type"] == algorithm
    assert any(text.startswith("algorithm.algorithm_type=dapo: ") for text in made.chosen) == (algorithm == "dapo")


@pytest.mark.parametrize(("overrides", "high"), [([], 0.2), (["actor_rollout_ref.actor.clip_ratio_high=0.28"], 0.28)])
def test_the_clip_range_is_that_of_the_script(overrides, high):
    """veRL's defaults, not those of dapo here, 0.2 and 0.28."""
    found, arguments = written(from_verl(dapo(*overrides))), "algorithm.policy_loss_fn_args"
    assert (found[f"{arguments}.clip_range_low"], found[f"{arguments}.clip_range_high"]) == (0.2, high)


def test_the_loss_per_token_and_no_kl():
    actor = "actor_rollout_ref.actor"
    found = written(from_verl(dapo(f"{actor}.loss_agg_mode=token-mean", "algorithm.use_kl_in_reward=False",
                                   f"{actor}.use_kl_loss=False", f"{actor}.clip_ratio_c=10")))
    assert (found["algorithm.loss_agg_mode"], found["algorithm.kl_loss_fn"], found["algorithm.kl_penalty_fn"]) == (
        "token-mean", "none", "none")
    assert found["algorithm.policy_loss_fn_args.clip_ratio_c"] == 10


@pytest.mark.parametrize(("overrides", "rounds"), [
    (["enable=True", "max_num_gen_batches=10"], 9),  # the first of ten batches is no round of fresh tasks
    (["enable=True", "max_num_gen_batches=1"], 0), (["enable=True", "max_num_gen_batches=0"], None),
    (["enable=True"], None), (["enable=False", "max_num_gen_batches=10"], 0), ([], 0),
    (["enable=True", "max_num_gen_batches=$(cat x)"], None)])
def test_batches_of_dynamic_sampling_are_rounds_of_fresh_tasks(overrides, rounds):
    assert written(from_verl(dapo(*(f"{GROUPS}.{o}" for o in overrides)))).get(ROUNDS) == rounds


@pytest.mark.parametrize(("metric", "ours"), [
    ("acc", "accuracy"), ("score", "reward"), ("seq_final_reward", "reward"), ("length", None)])
def test_the_metric_of_dynamic_sampling(metric, ours):
    made = from_verl(dapo(f"{GROUPS}.enable=True", f"{GROUPS}.metric={metric}"))
    assert written(made).get("algorithm.resample_metric") == ours
    assert (f"{GROUPS}.metric" in [g.key for g, _ in made.left_out]) == (ours is None)


def test_sampling_that_is_off_is_not_asked_of_another_algorithm():
    assert ROUNDS not in written(from_verl(launch(*GRPO, f"{GROUPS}.enable=False")))


@pytest.mark.parametrize(("file", "factor"), [
    ("gsm8k/train", 1.0), ("MATH-lighteval/train", 1.0), ("math/train", 1.0), ("math/dapo", 0.5), ("aime", 0.5)])
def test_the_penalty_is_halved_where_wrong_is_minus_one_there(file, factor):
    """veRL rewards gsm8k and MATH by 1 and 0, as accuracy_reward does."""
    made = from_verl(launch(*GRPO, f"data.train_files=/d/{file}.parquet", f"{BUFFER}.enable=True", f"{BUFFER}.len=10"))
    assert written(made)[f"{TASKS}.penalty_factor"] == factor


@pytest.mark.parametrize(("prefix", "longest"), [
    ("reward_model.overlong_buffer", None), ("+reward_model.reward_kwargs.overlong_buffer_cfg", None),
    ("+reward_model.reward_kwargs.overlong_buffer_cfg", 100)])
def test_the_penalty_on_overlong_responses_is_a_reward_function(prefix, longest):
    """penalty_factor 1.0 beside +1/-1 is 0.5 beside 1/0. The longest response is the penalty's own if it has one."""
    own = [f"+reward_model.reward_kwargs.max_resp_len={longest}"] if longest else []
    made = from_verl(dapo("data.max_response_length=20480", f"{prefix}.enable=True", f"{prefix}.len=4096",
                          f"{prefix}.penalty_factor=1.0", *own))
    found = written(made)
    assert found["buffer.explorer_input.default_reward_fn_type"] == ["accuracy_reward", "overlong_penalty"]
    assert (found[f"{TASKS}.cache_length"], found[f"{TASKS}.penalty_factor"]) == (4096, 0.5)
    assert found[f"{TASKS}.max_response_length"] == (longest or 20480)
    assert made.left_out == []


def test_a_penalty_that_is_off_has_no_effect():
    made = from_verl(dapo(f"{BUFFER}.enable=False", f"{BUFFER}.len=4096", f"{BUFFER}.penalty_factor=1.0",
                          "+reward_model.reward_kwargs.max_resp_len=100"))
    assert written(made)["buffer.explorer_input.default_reward_fn_type"] == "accuracy_reward"
    assert len(made.idle) == 4
    assert made.left_out == []
