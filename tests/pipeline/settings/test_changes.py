"""What can change on the way of a stage, and what a change gives."""

import re

import pytest

from ouroboros.pipeline.plan.identity import _keys, uses
from ouroboros.pipeline.settings import changes
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.kinds import ROWS
from ouroboros.pipeline.settings.setting import acts_on
from ouroboros.pipeline.store import files
from tests.configs import TINY, broken, overridden

STEPS = {key for kind in ROWS if kind.trains for key in _keys(kind, uses(kind, "reward_model"))[0]}


def test_every_setting_that_a_training_stage_depends_on_has_a_mark():
    assert [key for key in STEPS if acts_on(Config, key) not in ("trainer", "explorer", "never")] == []


def test_the_table_of_the_page_has_these_marks():
    page = (files.HOME / "docs" / "branches.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w.*]+)` \| (trainer|explorer|never) \|$", page, re.M))
    assert rows

    def written(key: str) -> str:
        key = key.replace(".tasksets.*", ".taskset")
        while key not in rows:
            key = key.rpartition(".")[0]
        return rows[key]

    keys = {*STEPS, "trainer.zero_stage", "trainer.packing", "trainer.ranks"}
    assert {key: written(key) for key in keys} == {key: acts_on(Config, key) for key in keys}
    assert [row for row in rows if not any(key == row or key.startswith(f"{row}.") for key in keys)] == []


@pytest.mark.parametrize("key", [
    "model.model_path", "model.custom_chat_template", "model.lora_configs", "seed", "buffer.batch_size",
    "buffer.train_batch_size", "algorithm.repeat_times", "explorer.over_rollout.ratio", "synchronizer.sync_interval",
    "synchronizer.sync_offset", "synchronizer.sync_style", "buffer.explorer_input.tasksets.0.path",
    "buffer.explorer_input.taskset.data_selector.selector_type",
    "buffer.trainer_input.experience_buffer.replay_buffer.enable", "trainer.zero_stage", "trainer.packing"])
def test_these_cannot_change(key):
    assert changes.acts(key) == "never"


def test_keys_below_a_setting_have_its_mark():
    assert changes.acts("algorithm.kl_loss_fn_args.kl_coef") == "trainer"
    assert changes.acts("buffer.explorer_input.tasksets.1.reward_fn_args.weight") == "explorer"
    assert changes.acts("buffer.total_steps") is changes.acts("trainer.save_interval") is changes.acts("name") is None


def test_each_segment_has_the_changes_before_it():
    config = overridden(*TINY, "changes={7: {algorithm.optimizer.lr: 1e-4}, 12: {algorithm.optimizer.lr: 2e-4, "
                               "model.temperature: 0.5}}")
    found = [(step, one.algorithm.optimizer.lr, one.model.temperature) for step, one in changes.segments(config)]
    assert found == [(0, config.algorithm.optimizer.lr, 1.0), (7, "1e-4", 1.0), (12, "2e-4", 0.5)]


def test_another_function_has_no_arguments_of_the_former():
    config = overridden(*TINY, "algorithm.policy_loss_fn_args={clip_range: 0.1}")
    made = changes.changed(config, {"algorithm.policy_loss_fn": "gspo"})
    assert (made.algorithm.policy_loss_fn, made.algorithm.policy_loss_fn_args) == ("gspo", {})


@pytest.mark.parametrize(("given", "found"), [
    ("{7:{algorithm.optimizer.lr:1e-4}}", []),
    ("{7:{algorithm.optimizer.lr:-1}}", ["rft: changes.7: algorithm.optimizer.lr"]),
    ("{7:{algorithm.optimizer.lrr:1e-4}}", ["rft: changes.7: algorithm.optimizer.lrr"]),
    ("{7:{seed:2}}", ["rft: changes.7: seed"]),
    ("{7:{trainer.save_interval:2}}", ["rft: changes.7: trainer.save_interval"]),
    ("{450:{algorithm.optimizer.lr:1e-4}}", ["rft: changes.450"]),
    ("{x:{algorithm.optimizer.lr:1e-4}}", ["rft: changes.x"]),
    ("{7:{algorithm.advantage_fn:gae}}", ["rft: changes.7: algorithm.advantage_fn"])])
def test_what_cannot_be_changed_is_refused(given, found):
    assert broken(f"stages.rft.changes={given}") == found


def test_a_stage_without_an_explorer_has_none_of_its_changes():
    assert broken("stages.sft.changes={7:{model.temperature:0.5}}") == ["sft: changes.7: model.temperature"]
