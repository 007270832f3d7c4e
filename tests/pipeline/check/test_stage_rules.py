"""Settings that no stage reads, or not the one that they are given to: told, and nothing that a stage reads is."""

import pytest

from ouroboros.commands.bridges.report import write
from ouroboros.commands.run.planning import checked_plan
from ouroboros.pipeline.check import preflight
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.check.stage import unread
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.settings.setting import plain
from tests.bridges import from_trinity
from tests.configs import changed, check, places
from tests.golden.messages import wording
from tests.plans import planned

USED = {"algorithm": {"advantage_fn": "ppo", "kl_loss_fn": "k2", "kl_penalty_fn": "k2", "entropy_loss_fn": "default"}}
PAIRS = {"algorithm": {"algorithm_type": "dpo", "kl_loss_fn": "k2", "entropy_loss_fn": "default"}}
OF_EVERY_KIND = [{"stage_name": "sft", "algorithm": {"algorithm_type": "sft"}},
                 {"stage_name": "dpo", **PAIRS},
                 {"stage_name": "look", "mode": "explore"}, {"stage_name": "offline", "mode": "train", **USED},
                 {"stage_name": "rft", **USED}, {"stage_name": "judge", "mode": "bench"}]

RATES = "algorithm.optimizer"


@pytest.fixture
def template(tmp_path) -> str:
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    return str(tmp_path / "chat.jinja")


def test_settings_that_a_stage_does_not_read_are_told_and_left():
    """Both say nothing to demonstrations; of the second stage grpo has no critic."""
    config = changed({"stages.sft.synchronizer.sync_interval": 2, "stages.sft.buffer.explorer_input.taskset.limit": 9,
                      "stages.rft.trainer.critic.cliprange_value": 0.7})
    report = preflight.check(config)
    assert places(report.warnings) == ["sft: buffer.explorer_input.taskset.limit, synchronizer.sync_interval",
                                       "rft: trainer.critic.cliprange_value"]
    assert report.problems == []


@pytest.mark.parametrize(("arguments", "of_stage"), [
    ({"algorithm.policy_loss_fn_args": {"nonsense": 0.28}}, {"algorithm_type": "gspo"}),
    ({"algorithm.advantage_fn_args": {"epsilon": 0.5}}, {"advantage_fn": "rec"})])
def test_arguments_of_the_run_for_a_function_that_no_stage_calls_are_told(arguments, of_stage):
    """They belong to the run's own function, which the only stage that could take them does not name."""
    named = {f"stages.rft.algorithm.{key}": value for key, value in of_stage.items()}
    assert places(unread(Recipe(changed(arguments | named)))) == list(arguments)
    assert unread(Recipe(changed(arguments))) == []  # there the stage calls the function


@pytest.mark.parametrize(("key", "given"), [
    ("synchronizer.sync_offset", {"synchronizer.sync_offset": 2, "synchronizer.sync_style": "trainer_driven"}),
    ("explorer.over_rollout.wait_after_min", {"explorer.over_rollout.wait_after_min": 9.0}),
    (None, {"explorer.over_rollout.wait_after_min": 9.0, "explorer.over_rollout.ratio": 0.5}),
    (f"{RATES}.lr_decay_steps", {f"{RATES}.lr_decay_steps": 5}),
    (None, {f"{RATES}.lr_decay_steps": 5, f"{RATES}.lr_scheduler_type": "wsd"}),
    (f"{RATES}.min_lr_ratio", {f"{RATES}.min_lr_ratio": 0.1, f"{RATES}.lr_scheduler_type": "constant",
                               f"stages.sft.{RATES}.lr_scheduler_type": "constant"}),
    (None, {f"{RATES}.min_lr_ratio": 0.1}),  # the recipe's rates are linear and cosine
    ("algorithm.resample_metric", {"algorithm.resample_metric": "reward"}),
    (None, {"algorithm.resample_metric": "reward", "algorithm.max_resample_rounds": 2}),
    ("algorithm.rollout_correction.threshold", {"algorithm.rollout_correction.threshold": 3.0,
                                                "algorithm.rollout_correction.level": "none"}),
    (None, {"synchronizer.sync_offset": 2})])
def test_settings_that_another_one_switches_off_are_told(key, given):
    assert places(unread(Recipe(changed(given)))) == ([key] if key else [])


def test_they_are_told_where_snakemake_is_called_without_us(tmp_path, capsys, monkeypatch):
    preflight.warn.cache_clear()
    config = changed({"stages.sft.synchronizer.sync_interval": 2, "checkpoint_root_dir": str(tmp_path)})
    assert [stage.name for stage in checked_plan(config).stages][3] == "sft"
    wording(capsys.readouterr().err, "'sft': synchronizer.sync_interval")
    preflight.warn.cache_clear()
    monkeypatch.setenv("OURO_SUMMARY_FOLLOWS", "1")  # `ouro run` has told them
    checked_plan(config)
    assert capsys.readouterr().err == ""


def test_a_stage_reads_whatever_it_is_handed(tmp_path, template):
    """Every stage says itself all that is handed to it, and is told nothing; chat_template_path is among it."""
    values = {"stages": OF_EVERY_KIND, "model.chat_template_path": template}
    handed = {stage.name: stage.config for stage in planned(tmp_path, values).stages}
    handed["judge"] = handed["judge_rft"]
    said = [{**entry, **plain(handed[entry["stage_name"]])} for entry in OF_EVERY_KIND]
    for entry in said:
        assert entry["model"].pop("lora_configs") == []  # without an adapter it says nothing
    assert all(entry["model"]["chat_template_path"] == template for entry in said)
    assert [one for one in unread(Recipe(changed({"stages": said}))) if one.stages] == []


def test_an_imported_stage_that_repeats_whole_sections_goes_through(tmp_path):
    """Trinity-RFT replaces sections, so a stage there repeats all of one; demonstrations read the half of these."""
    made = from_trinity("""
algorithm: {algorithm_type: grpo, repeat_times: 8}
stages:
- stage_name: warmup
  mode: train
  algorithm: {algorithm_type: sft, repeat_times: 8}
  buffer:
    train_batch_size: 32
    explorer_input: {taskset: {path: a.jsonl}}
    trainer_input: {experience_buffer: {path: b.jsonl, format: {prompt_key: q, response_key: a}}}
  synchronizer: {sync_interval: 2}
- stage_name: rft
  buffer: {explorer_input: {taskset: {path: a.jsonl}}}
""")
    recipe = tmp_path / "made.yaml"
    recipe.write_text(write(made, "test"))
    config = compose([f"recipe={recipe}"])
    report = preflight.check(config, elsewhere=True)
    (warning,) = [one for one in report.warnings if one.stages]
    assert warning.stages == ("warmup",)
    assert {"algorithm.repeat_times", "buffer.explorer_input.taskset.path", "synchronizer.sync_interval"} <= set(
        warning.key.split(", "))
    assert check(config) == []
    assert places(report.problems) == ["model.model_path"]  # the configuration names none


def test_the_type_that_a_stage_explores_for_fills_what_it_reads(tmp_path):
    """remax asks for a greedy response to each task; so the type is read, and other rows are made by it."""
    def look(kind):
        return [{"stage_name": "look", "mode": "explore", "algorithm": {"algorithm_type": kind}}]

    assert not any("algorithm_type" in line for line in unread(Recipe(changed({"stages": look("remax")}))))
    assert len({next(s.identity for s in planned(tmp_path, {"stages": look(kind)}).stages if s.name == "look")
                for kind in ("remax", "grpo", "gspo")}) == 2
