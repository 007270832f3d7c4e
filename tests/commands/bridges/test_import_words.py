"""What an import says in single cases: a wrong command, files that a source names, values without a counterpart."""

import pytest

from ouroboros.pipeline.store.errors import ConfigError
from tests.bridges import from_trinity, from_verl, launch
from tests.golden.messages import refuses


@pytest.mark.parametrize(("text", "code", "told"), [
    ("algorithm: {algorithm_type: grpo}\nbuffer: {batch_size: 4}\nexplorer: {eval_interval: 3}\n", 2,
     ["Trinity-RFT", "(buffer, explorer)", "ouro", "trinity"]),
    ("data: {rollout_batch_size: 512}\nworker: {actor: {global_batch_size: 128}}\ntrainer: {total_epochs: 15}\n", 1,
     ["EasyR1"])], ids=["trinity", "easyr1"])
def test_a_configuration_of_another_tool_is_not_read_as_one_of_verl(text, code, told):
    with refuses(ConfigError, *told) as error:
        from_verl(text, "config.yaml")
    assert getattr(error.value, "exit_code", 2) == code


def test_files_that_a_yaml_names_are_not_read_which_is_said():
    made = from_verl("hydra: {searchpath: [file://verl/trainer/config], run: {dir: out}}\n"
                     "defaults: [ppo_trainer, _self_]\ndata: {train_batch_size: 64}\n", "c.yaml")
    assert [(line, text.partition("=")[0]) for line, text in made.skipped] == [(1, "hydra.searchpath"), (2, "defaults")]
    assert made.unread == []
    swept = from_verl(launch("data.train_batch_size=64", "actor_rollout_ref.actor.optim.lr=1e-6,1e-5"))
    assert [unread.to for unread in swept.unknown] == [["algorithm.optimizer.lr"]]
    assert from_verl("defaults: [mine]\ndata: {train_batch_size: 64}\n", "c.yaml").unread == [1]
    assert from_verl(launch("--config-name=mine", "data.train_batch_size=64")).unread == [2]
    assert from_verl(launch("--config-name=ppo_trainer", "data.train_batch_size=64")).unread == []
    assert [given.key for given, _ in made.idle] == ["hydra.run.dir"]


def test_what_is_off_there_too_is_not_among_what_is_lost():
    made = from_trinity("model: {tinker: {enable: false, rank: 16}}")
    assert ([given.key for given, _ in made.idle], made.left_out) == (["model.tinker.enable", "model.tinker.rank"], [])
