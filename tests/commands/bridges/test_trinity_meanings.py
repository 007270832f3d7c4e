"""Keys of Trinity-RFT whose name, unit or default is another one here: what an import makes of them."""

import pytest

from ouroboros.commands import cli
from tests.bridges import from_trinity, left_out_of_trinity, written
from tests.bridges import values_of_trinity as values
from tests.golden.messages import wording

ADAPTER = "model.lora_configs.0."


@pytest.mark.parametrize(("below", "wanted"), [
    ("enable: true", {"lora_rank": 16, "lora_alpha": 32}),  # 16 is TinkerConfig's rank
    ("enable: true, rank: 64, seed: 3", {"lora_rank": 64, "lora_alpha": 32}),
    ("rank: 8, enable: true, train_mlp: false, train_attn: true",
     {"lora_rank": 8, "lora_alpha": 32, "exclude_modules": ["gate_proj", "up_proj", "down_proj"]}),
    ("enable: false, rank: 8", {})])
def test_a_service_that_trains_an_adapter(below, wanted):
    """At an adapter's learning rate, all weights of the model must not be trained."""
    made = from_trinity(f"{{algorithm: {{optimizer: {{lr: 1.0e-05}}}}, model: {{tinker: {{{below}}}}}}}")
    found = written(made)
    assert {key.removeprefix(ADAPTER): value for key, value in found.items() if key.startswith("model.")} == wanted
    assert found["algorithm.optimizer.lr"] == 1e-5


def test_the_wait_for_slow_groups_has_their_default():
    assert values("explorer: {over_rollout: {ratio: 0.25}}")["explorer.over_rollout.wait_after_min"] == 30
    assert values("explorer: {over_rollout: {ratio: 0.25, wait_after_min: 5.0}}")[
        "explorer.over_rollout.wait_after_min"] == 5
    assert "explorer.over_rollout.wait_after_min" not in values("explorer: {over_rollout: {ratio: 0.0}}")


def test_a_key_of_another_meaning_is_left_out():
    text = "buffer: {trainer_input: {experience_buffer: {max_read_timeout: 1800}}}"
    key = "buffer.trainer_input.experience_buffer.max_read_timeout"
    assert key in left_out_of_trinity(text)
    assert not {key, "synchronizer.sync_timeout"} & set(values(text))


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_run_that_goes_on_does_so_here(goes_on):
    assert values(f"continue_from_checkpoint: {goes_on}")["continue_from_checkpoint"] is goes_on


def test_an_argument_named_like_a_section_of_a_set_is_an_argument():
    found = values("buffer: {explorer_input: {taskset: {default_reward_fn_type: 'my.code:score', "
                   "reward_fn_args: {weights: {format: 0.1}, subset_name: x}}}}")
    below = "buffer.explorer_input.taskset.reward_fn_args"
    assert (found[f"{below}.weights.format"], found[f"{below}.subset_name"]) == (0.1, "x")


def test_one_variable_of_the_environment_is_one_problem(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("TASKS_OF_THIS_TEST", raising=False)
    sets = "path: '${oc.env:TASKS_OF_THIS_TEST}', default_reward_fn_type: accuracy_reward"
    evaluated = f"[{{name: a, {sets}}}, {{name: b, {sets}}}]"
    (tmp_path / "c.yaml").write_text(f"buffer: {{explorer_input: {{taskset: {{{sets}}}, eval_tasksets: {evaluated}}}}}")
    assert cli.main(["import", "trinity", str(tmp_path / "c.yaml"), "--stdout"]) == 1
    wording(capsys.readouterr().err, "1 problem")
