"""The file that trainer.trainer_config_path of Trinity-RFT names, as configurations of 2025 have one."""

import pytest

from ouroboros.commands import cli
from ouroboros.commands.bridges.source import read_yaml
from ouroboros.commands.bridges.trinity import translate
from ouroboros.pipeline.store.errors import ConfigError
from tests.golden.messages import refuses

CONFIG = """
algorithm: {algorithm_type: grpo, repeat_times: 8}
buffer: {batch_size: 4, explorer_input: {taskset: {path: t.jsonl}}}
trainer: {trainer_config_path: examples/mine/train.yaml, save_interval: 10}
"""
TRAINER = """
actor_rollout_ref:
  actor:
    optim: {lr: 5e-7}
    use_dynamic_bsz: True
    grad_clip: 0.5
  ref: {log_prob_use_dynamic_bsz: "${actor_rollout_ref.actor.use_dynamic_bsz}"}
trainer: {total_epochs: 15}
"""


def translated(tmp_path, config=CONFIG, trainer=TRAINER):
    """A configuration in a checkout, beside its trainer's file."""
    directory = tmp_path / "examples" / "mine"
    directory.mkdir(parents=True)
    (directory / "c.yaml").write_text(config)
    if trainer:
        (directory / "train.yaml").write_text(trainer)
    return translate(read_yaml(config, "c.yaml"), "c.yaml", directory / "c.yaml")


def test_the_file_is_found_from_the_root_of_the_checkout_and_read(tmp_path):
    made = translated(tmp_path)
    assert made.value("algorithm", "optimizer", "lr") == 5e-7
    assert made.value("trainer", "grad_clip") == 0.5
    assert made.value("buffer", "total_epochs") == 15
    assert made.value("trainer", "save_interval") == 10
    assert (made.keys, made.asked) == (6 + 5, [])  # of the configuration, of the trainer's file
    assert {given.line for given, _ in made.renamed if "trainer_config" in given.key} == {4}  # which names the file
    assert any("train.yaml" in note for note in made.chosen)


def test_the_configuration_wins_over_it(tmp_path):
    made = translated(tmp_path, CONFIG.replace("repeat_times: 8", "optimizer: {lr: 1e-6}"))
    assert made.value("algorithm", "optimizer", "lr") == 1e-6


@pytest.mark.parametrize(("said", "kind", "coefficient"), [
    ("use_kl_loss: True, kl_loss_coef: 0.04, kl_loss_type: low_var_kl", "low_var_kl", 0.04),
    ("use_kl_loss: True", "low_var_kl", None), ("use_kl_loss: False, kl_loss_coef: 0.1", "none", None),
    ("grad_clip: 1.0", "k2", 0.001)])
def test_its_kl_loss_counts_where_the_configuration_names_none(tmp_path, said, kind, coefficient):
    made = translated(tmp_path, trainer=f"actor_rollout_ref: {{actor: {{{said}}}}}\n")
    assert made.value("algorithm", "kl_loss_fn") == kind
    assert made.value("algorithm", "kl_loss_fn_args", "kl_coef") == coefficient


def test_its_kl_loss_says_nothing_beside_that_of_the_configuration(tmp_path):
    made = translated(tmp_path, CONFIG.replace("repeat_times: 8", "kl_loss_fn: none"),
                      "actor_rollout_ref: {actor: {use_kl_loss: True, kl_loss_coef: 0.04}}\n")
    assert made.value("algorithm", "kl_loss_fn") == "none"
    assert made.left_out == []


def test_a_file_that_is_not_here_is_asked_for(tmp_path, capsys):
    assert len(translated(tmp_path, trainer="").asked) == 1
    path = tmp_path / "examples" / "mine" / "c.yaml"
    assert cli.main(["import", "trinity", str(path), "--stdout"]) == 1
    assert "examples/mine/train.yaml" in capsys.readouterr().err


def test_a_file_that_is_no_configuration_is_an_error(tmp_path):
    with refuses(ConfigError, "train.yaml"):
        translated(tmp_path, trainer="- 1\n")


@pytest.mark.parametrize("key", ["data.total_epochs", "data.total_epoch", "buffer.total_epoch", "trainer.total_epochs"])
def test_older_names_of_the_epochs(key):
    made = translate(read_yaml(f"{key}: 7\n", "c.yaml"), "c.yaml")
    assert made.value("buffer", "total_epochs") == 7
