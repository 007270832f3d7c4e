"""Arguments of an algorithm's functions that an import brings: those that a function here has, and no others."""

import pytest

from ouroboros.commands import cli
from tests.bridges import from_trinity, from_verl, launch, written
from tests.golden.messages import wording

ACTOR = "actor_rollout_ref.actor"
LOSS = "algorithm.policy_loss_fn_args"


def lost(made) -> dict[str, str]:
    return {given.key: why for given, why in made.left_out}


def test_a_loss_of_verl_keeps_the_arguments_that_it_has():
    """GSPO clips by a range of its own and has no dual clip; PPO, the loss of grpo, has both."""
    bounds = [f"{ACTOR}.clip_ratio_low=0.0003", f"{ACTOR}.clip_ratio_high=0.0004", f"{ACTOR}.clip_ratio_c=10.0"]
    gspo = from_verl(launch("algorithm.adv_estimator=grpo", f"{ACTOR}.policy_loss.loss_mode=gspo", *bounds))
    found = written(gspo)
    assert {name: found.get(f"{LOSS}.{name}") for name in ("clip_range_low", "clip_range_high", "clip_ratio_c")} == {
        "clip_range_low": 0.0003, "clip_range_high": 0.0004, "clip_ratio_c": None}
    wording(lost(gspo)[f"{ACTOR}.clip_ratio_c"], "'gspo'", "'clip_ratio_c'")
    assert written(from_verl(launch("algorithm.adv_estimator=grpo", *bounds)))[f"{LOSS}.clip_ratio_c"] == 10


def test_an_argument_of_trinity_that_its_loss_lacks_is_left_out_with_those_that_it_has():
    made = from_trinity("algorithm: {algorithm_type: grpo, policy_loss_fn_args: {use_token_level_loss: true, "
                        "clip_range: 0.1}}")
    wording(lost(made)[ f"{LOSS}.use_token_level_loss"], "'ppo'", "'use_token_level_loss'", "clip_range")
    assert written(made)[f"{LOSS}.clip_range"] == 0.1


def test_an_argument_for_all_is_kept_where_the_function_of_one_stage_has_it():
    made = from_trinity("""\
algorithm: {algorithm_type: grpo, policy_loss_fn_args: {tau: 0.5, nonsense: 1}}
stages:
- {stage_name: a, algorithm: {algorithm_type: grpo, policy_loss_fn_args: {tau: 0.1}}}
- {stage_name: b, algorithm: {algorithm_type: opmd}}
""")
    assert list(lost(made)) == [f"{LOSS}.nonsense", f"stages.0.{LOSS}.tau"]
    assert written(made)[f"{LOSS}.tau"] == 0.5


@pytest.mark.parametrize(("key", "kind", "estimator"), [
    ("loss", "k3+", "k2"), ("loss", "low_var_kl+", "k2"), ("loss", "k1+", "k2"), ("loss", "k3", "low_var_kl"),
    ("penalty", "abs+", "abs")])  # in the reward there is no gradient
def test_a_kl_loss_with_a_straight_through_gradient_learns_as_k2(key, kind, estimator):
    """veRL's `x+` is value(x) with the gradient of (l - f)^2 / 2, which is k2: of a loss only the gradient counts."""
    given = [f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_type={kind}"] if key == "loss" else [
        "algorithm.use_kl_in_reward=True", f"algorithm.kl_penalty={kind}"]
    assert written(from_verl(launch("algorithm.adv_estimator=grpo", *given)))[f"algorithm.kl_{key}_fn"] == estimator


def test_an_import_says_what_the_check_would_refuse(tmp_path, monkeypatch, capsys):
    """A negative clip range is no fault of a type: the function's own bound refuses it, and the import says so."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text("name: x\nmodel: {model_path: /m}\n"
                                     "algorithm: {algorithm_type: grpo, policy_loss_fn_args: {clip_range: -1}}\n")
    assert cli.main(["import", "trinity", "x.yaml"]) == 1
    told = capsys.readouterr().out
    wording(told, "ouro", "check", "1 problem")
    assert f"{LOSS}.clip_range=-1" in told
