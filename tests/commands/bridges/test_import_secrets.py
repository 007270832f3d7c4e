"""No bridge writes a secret into a recipe, whichever rule made the line, nor shows it."""

import sys

import pytest

from ouroboros.commands.bridges.report import _print_account, write
from tests.bridges import from_trinity, from_verl, launch


@pytest.mark.parametrize("script", [
    "WANDB_API_KEY=hush\n" + launch("trainer.project_name=$WANDB_API_KEY", "trainer.experiment_name=x-$WANDB_API_KEY"),
    launch("actor_rollout_ref.model.path=${HF_TOKEN:-hush}/foo", "trainer.default_local_dir=/x/$HF_TOKEN")])
def test_a_script_of_verl(script):
    made = from_verl(script)
    text = write(made, "test")
    assert "hush" not in text
    assert "oc.env:HF_TOKEN" not in text
    assert made.left_out
    assert all("secret" in why for _, why in made.left_out)


def test_a_configuration_of_trinity():
    made = from_trinity("""\
project: ${oc.env:OPENAI_API_KEY}
explorer:
  env_vars: {GITHUB_TOKEN: hush, WANDB_SECRET: hush, DEPTH: "3", A: "${oc.env:MY_TOKEN,hush}"}
monitor: {monitor_args: {headers: {api_key: hush}}}
buffer: {explorer_input: {taskset: {workflow_args: {password: hush}}}}
""")
    text = write(made, "test")
    assert "hush" not in text
    assert "OPENAI_API_KEY" not in text
    assert 'DEPTH: "3"' in text or "DEPTH: '3'" in text
    assert {given.key for given, _ in made.left_out} == {
        "project", "explorer.env_vars.GITHUB_TOKEN", "explorer.env_vars.A", "explorer.env_vars.WANDB_SECRET",
        "buffer.explorer_input.taskset.workflow_args.password", "monitor.monitor_args.headers.api_key"}


@pytest.mark.parametrize("word", [
    "$(curl -H 'Authorization: Bearer hush' http://h)", "`curl -H hush`", "x-$(curl -u me:hush h)/y",
    "$(HF_TOKEN=hush f)", "${X:-$(curl -u me:hush h)}", "$((8 * $(curl -u me:hush h)))",
    "<(curl -u me:hush h)", '"$(echo $(curl hush))"'])
def test_of_a_command_in_a_value_only_the_name_is_told(word, capsys):
    """What it is called with may hold a secret of any form."""
    made = from_verl(launch(f"data.val_files={word}", f"X={word}", f"data.train_files=[{word}]"))
    _print_account(made, sys.stdout)
    told = write(made, "test") + capsys.readouterr().out + str(made.unknown) + str(made.skipped)
    assert "data.val_files" in told
    assert "hush" not in told


def test_an_unknown_value_of_a_secret_is_not_told(capsys):
    made = from_verl(launch("trainer.api_key=hush$(date)"))
    _print_account(made, sys.stdout)
    assert "hush" not in write(made, "test") + capsys.readouterr().out
