"""What veRL does by default, or by a key that says little: losses, adapters, batches, lengths of runs."""

import pytest

from tests.bridges import from_verl, launch, written
from tests.bridges import values_of_verl as values

CLIP = "algorithm.policy_loss_fn_args.clip_range_"
ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"


def reasons(made) -> dict[str, str]:
    return {given.key: why for given, why in made.left_out}


@pytest.mark.parametrize(("loss", "said", "low"), [
    ("gspo", (), 0.2), ("cispo", (), 0.2), ("gspo", (f"{ACTOR}.clip_ratio_low=3e-4",), 3e-4)])
def test_losses_whose_defaults_are_not_ours_have_verls_unless_said(loss, said, low):
    found = values(launch("algorithm.adv_estimator=grpo", f"{ACTOR}.policy_loss.loss_mode={loss}", *said))
    assert (found[f"{CLIP}low"], found[f"{CLIP}high"]) == (low, 0.2)  # of veRL's config/actor/actor.yaml
    assert found["algorithm.loss_agg_mode"] == "token-mean"


def test_sapo_takes_no_aggregation():  # core_algos.py passes seq-mean-token-mean itself
    made = from_verl(launch(f"{ACTOR}.policy_loss.loss_mode=sapo", f"{ACTOR}.loss_agg_mode=token-mean"))
    assert written(made)["algorithm.loss_agg_mode"] == "seq-mean-token-mean"
    assert f"{ACTOR}.loss_agg_mode" in {given.key for given, _ in made.idle}


@pytest.mark.parametrize(("mode", "notes"), [("token-mean", 1), ("seq-mean-token-sum", 1), ("seq-mean-token-mean", 0)])
def test_gspo_is_aggregated_as_the_script_says(mode, notes):  # since veRL 0.9.1; older releases: over responses
    made = from_verl(launch(f"{ACTOR}.policy_loss.loss_mode=gspo", f"{ACTOR}.loss_agg_mode={mode}"))
    assert written(made)["algorithm.loss_agg_mode"] == mode
    assert sum("older releases" in note for note in made.chosen) == notes


@pytest.mark.parametrize("section", [ACTOR, f"{ACTOR}.policy_loss"])
def test_the_temperatures_of_sapo(section):
    found = values(launch("algorithm.adv_estimator=grpo", f"{ACTOR}.policy_loss.loss_mode=sapo",
                          f"{section}.tau_pos=1.0", f"{section}.tau_neg=1.05"))
    assert [found[f"algorithm.policy_loss_fn_args.{name}"] for name in ("tau_pos", "tau_neg")] == [1.0, 1.05]


def test_a_kl_loss_whose_switch_is_not_known_is_not_called_off():
    made = from_verl(launch(f"'{ACTOR}.use_kl_loss=${{kl.on}}'", f"{ACTOR}.kl_loss_coef=0.01",
                            f"{ACTOR}.kl_loss_type=low_var_kl"))
    assert [(u.given.key, u.to) for u in made.unknown] == [(f"{ACTOR}.use_kl_loss", ["algorithm.kl_loss_fn"])]
    assert "is not known" in reasons(made)[f"{ACTOR}.kl_loss_coef"]
    assert "is not known" in reasons(made)[f"{ACTOR}.kl_loss_type"]


def test_an_adapter_with_a_path_and_no_rank_is_lora_and_asks_for_its_rank():
    made = from_verl(launch(f"{MODEL}.lora_adapter_path=adapters/mine", f"{MODEL}.lora_rank=0"))
    assert made.entries[("model", "lora_configs", 0, "path")].value == "adapters/mine"
    assert "lora_rank" in made.asked[0]


@pytest.mark.parametrize(("overrides", "interval"), [
    (("data.gen_batch_size=768",), 3), (("data.gen_batch_size=null",), 2),
    (("data.gen_batch_size=768", "algorithm.filter_groups.enable=True"), 2),
    (("'data.gen_batch_size=${data.train_batch_size}'",), 2)])
def test_the_batch_of_the_loader_counts_where_groups_are_not_filtered(overrides, interval):
    made = from_verl(launch("algorithm.adv_estimator=grpo", "data.train_batch_size=512",
                            f"{ACTOR}.ppo_mini_batch_size=256", *overrides))
    assert made.value("synchronizer", "sync_interval") == interval
    assert made.keys == 3 + len(overrides)


@pytest.mark.parametrize(("key", "on", "off"), [
    ("megatron.override_transformer_config.moe_aux_loss_coeff", "0.01", "0"),
    ("megatron.override_transformer_config.fp8", "e4m3", "False"), ("fsdp_config.qat.enable", "True", "False"),
    ("veomni.router_replay.mode", "R3", "disabled"), ("router_replay.mode", "R2", None),
    ("optim.override_optimizer_config.fp8_recipe", "blockwise", None), ("megatron.qat.mode", "w4a16", None)])
def test_what_changes_the_training_is_among_what_is_lost_where_it_is_on(key, on, off):
    assert list(reasons(from_verl(launch(f"{ACTOR}.{key}={on}")))) == [f"{ACTOR}.{key}"]
    assert off is None or reasons(from_verl(launch(f"{ACTOR}.{key}={off}"))) == {}


def test_no_steps_are_one_step_of_verl():  # its loop asks whether a step is the last one after it
    found = values(launch("trainer.total_training_steps=0", "data.train_batch_size=512",
                          f"{ACTOR}.ppo_mini_batch_size=256"))
    assert found["buffer.total_steps"] == 2
    assert "buffer.total_epochs" not in found


@pytest.mark.parametrize(("value", "asks"), [("True", 1), ("False", 0)])
def test_a_script_that_only_evaluates_is_not_taken_for_training(value, asks):
    assert len(from_verl(launch("trainer.nnodes=1", f"trainer.val_only={value}")).asked) == asks
