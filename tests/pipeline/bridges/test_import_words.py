"""What an import says in single cases: a wrong command, files that a source names, values without a counterpart."""

from pathlib import Path

import pytest

from pipeline import cli
from pipeline.store.errors import ConfigError
from tests.bridges import from_trinity, from_verl, launch, written


def test_a_configuration_of_trinity_is_not_read_as_one_of_verl():
    text = "algorithm: {algorithm_type: grpo}\nbuffer: {batch_size: 4}\nexplorer: {eval_interval: 3}\n"
    with pytest.raises(ConfigError, match=r"Trinity-RFT alone has \(buffer, explorer\).*`ouro import trinity`"):
        from_verl(text, "c.yaml")


def test_files_that_a_yaml_names_are_not_read_which_is_said():
    made = from_verl("hydra: {searchpath: [file://verl/trainer/config], run: {dir: out}}\n"
                     "defaults: [ppo_trainer, _self_]\ndata: {train_batch_size: 64}\n", "c.yaml")
    assert [(line, text.partition("=")[0]) for line, text in made.skipped] == [(1, "hydra.searchpath"), (2, "defaults")]
    assert all("names files of veRL's configuration, which are not read" in text for _, text in made.skipped)
    assert [given.key for given, _ in made.idle] == ["hydra.run.dir"]


@pytest.mark.parametrize(("level", "ours"), [("debug", "DEBUG"), ("INFO", "INFO"), ("warning", "WARNING")])
def test_the_level_of_the_log_in_small_letters(level, ours):
    assert written(from_trinity(f"log: {{level: {level}}}"))["log.level"] == ours


def test_what_is_off_there_too_is_not_among_what_is_lost():
    made = from_trinity("model: {tinker: {enable: false, rank: 16}}")
    assert ([given.key for given, _ in made.idle], made.left_out) == (["model.tinker.enable", "model.tinker.rank"], [])


@pytest.mark.parametrize(("logger", "comment"), [
    ("console", "trainer.logger=console"), ("wandb", "trainer.logger"),
    ('"[console,wandb]"', "trainer.logger=console, wandb")])
def test_the_comment_of_the_monitor_says_its_loggers_once(logger, comment):
    made = from_verl(launch("trainer.nnodes=1", f"trainer.logger={logger}"))
    assert made.entries[("monitor", "monitor_type")].comment == comment


def test_a_model_of_the_hub_is_taken_as_it_is_and_one_engine_is_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.sh").write_text(launch(
        "algorithm.adv_estimator=gae", "actor_rollout_ref.model.path=org/m", "critic.model.path=org/m",
        "trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.tensor_model_parallel_size=2"))
    cli.main(["import", "verl", "x.sh"])
    told = capsys.readouterr().out
    assert "model_path: org/m" in Path("conf/recipe/x.yaml").read_text()
    assert "veRL runs 1 engine, the guide's" in told


def test_an_unknown_part_of_a_text_is_shown_as_a_variable():
    made = from_verl("[ -z \"$Y\" ] && N=2\nN+=1\n" + launch("trainer.nnodes=1", "data.train_batch_size=$N"))
    assert [unread.given.value for unread in made.unknown] == ["${N}1"]


def test_an_estimator_without_a_counterpart_is_told_in_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.sh").write_text(launch("algorithm.adv_estimator=opo", "actor_rollout_ref.model.path=/m"))
    assert cli.main(["import", "verl", "x.sh"]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "estimator opo (a baseline of rewards weighed by lengths; rloo has" in told
    assert "=opo: needed one of those that `ouro config explain algorithm.algorithm_type` lists." in told
    assert "reinforceplusplus, remax" not in told
