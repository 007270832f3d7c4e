"""veRL's algorithm.rollout_correction: whose log-probs are the old ones, and the weights between engine and trainer."""

import pytest

from tests.bridges import from_verl, launch, written
from tests.golden.messages import wording

GIVEN = "algorithm.rollout_correction"
ONE = ["data.train_batch_size=64", "actor_rollout_ref.actor.ppo_mini_batch_size=64"]  # 64 / 64 optimizer steps
FOUR = ["data.train_batch_size=256", "actor_rollout_ref.actor.ppo_mini_batch_size=64"]


def correction(*overrides: str) -> tuple:
    """(bypass_old_logprobs, level, threshold) of the recipe; None where it has no line."""
    found = written(from_verl(launch("algorithm.adv_estimator=grpo", *overrides)))
    return tuple(found.get(f"algorithm.{key}") for key in (
        "bypass_old_logprobs", "rollout_correction.level", "rollout_correction.threshold"))


def test_a_silent_script_has_verls_defaults():
    """veRL scores rollouts again and weighs nothing; over four optimizer steps the ratio is to the rollout's own."""
    assert correction(*ONE) == (False, "none", None)
    assert correction(*FOUR) == (None, None, None)  # ours is true
    assert correction(*FOUR, f"{GIVEN}.bypass_mode=False") == (True, None, None)
    made = from_verl(launch(*FOUR))
    assert "algorithm.bypass_old_logprobs=true: veRL scores" in " ".join(made.chosen)
    wording(made.chosen, "veRL", "4 optimizer")


@pytest.mark.parametrize("steps", [ONE, FOUR])
def test_weights_at_a_level_with_a_threshold(steps):
    assert correction(*steps, f"{GIVEN}.rollout_is=sequence", f"{GIVEN}.rollout_is_threshold=3.0",
                      f"{GIVEN}.bypass_mode=false") == (False, "sequence", 3.0)
    assert correction(*steps, f"{GIVEN}.rollout_is=token") == (False, "token", None)


def test_every_key_of_it_is_accounted_for():
    made = from_verl(launch(*ONE, f"{GIVEN}.rollout_is=token", f"{GIVEN}.rollout_is_threshold=3.0",
                            f"{GIVEN}.bypass_mode=false", f"{GIVEN}.rollout_rs=token"))
    assert [given.key for given, _ in made.left_out] == [f"{GIVEN}.rollout_rs"]
    assert {(given.key, to) for given, to in made.renamed if given.key.startswith(GIVEN)} == {
        (f"{GIVEN}.rollout_is", f"{GIVEN}.level"), (f"{GIVEN}.rollout_is_threshold", f"{GIVEN}.threshold"),
        (f"{GIVEN}.bypass_mode", "algorithm.bypass_old_logprobs")}


def test_bypassed_the_loss_holds_the_weight_already():
    assert correction(*FOUR, f"{GIVEN}.bypass_mode=True", f"{GIVEN}.rollout_is=token") == (True, None, None)
    made = from_verl(launch(f"{GIVEN}.bypass_mode=True", f"{GIVEN}.rollout_is=token", f"{GIVEN}.loss_type=reinforce"))
    assert [given.key for given, _ in made.left_out] == [f"{GIVEN}.loss_type", f"{GIVEN}.rollout_is"]


def test_a_switch_that_is_none_is_left_out_and_one_that_is_unknown_is_listed():
    made = from_verl(launch(*ONE, f"{GIVEN}.bypass_mode=BM"))
    assert [given.key for given, _ in made.left_out] == [f"{GIVEN}.bypass_mode"]
    assert written(made)["algorithm.bypass_old_logprobs"] is False
    made = from_verl(launch(*ONE, f"{GIVEN}.bypass_mode=$(cat mode)"))
    assert [unread.to for unread in made.unknown] == [["algorithm.bypass_old_logprobs"]]
    assert "algorithm.bypass_old_logprobs" not in written(made)


@pytest.mark.parametrize("value", ["False", "True"])
def test_greedy_rollouts_are_left_out_and_not_called_off(value):
    made = from_verl(launch(f"actor_rollout_ref.rollout.do_sample={value}"))
    assert [why.partition(",")[0] for _, why in made.left_out] == ["greedy rollouts there"] * (value == "False")
    assert [why for _, why in made.idle] == ["always so."] * (value == "True")


@pytest.mark.parametrize(("rules", "bounds", "expected"), [
    ("token_k1", "0.5_2.0", {"token_k1": [0.5, 2.0]}), ("seq_mean_k1", "2.0", {"seq_mean_k1": [0.5, 2.0]}),
    ("token_k2,seq_sum_k3", "0.1,3", {"token_k2": 0.1, "seq_sum_k3": 3.0}),
    ("token_k2,token_k3", "0.2", {"token_k2": 0.2, "token_k3": 0.2}), ("token", "0.2", {}), ("token_k1", "a", {})])
def test_rejections_have_verls_names(rules, bounds, expected):
    made = from_verl(launch(*ONE, f"""{GIVEN}.rollout_rs=\\'{rules}\\'""",
                            f"""{GIVEN}.rollout_rs_threshold=\\'{bounds}\\'"""))
    prefix = "algorithm.rollout_rejection."
    found = written(made).items()
    assert {key.removeprefix(prefix): value for key, value in found if key.startswith(prefix)} == expected
    assert bool(made.left_out) == (not expected)


def test_a_threshold_of_two_numbers_is_ice_pop():
    found = written(from_verl(launch(*ONE, f"{GIVEN}.rollout_is=token", f"{GIVEN}.rollout_is_threshold='0.5_4.0'")))
    assert found["algorithm.rollout_correction.threshold"] == 4.0
    assert found["algorithm.rollout_rejection.token_k1"] == [0.25, 2.0]
