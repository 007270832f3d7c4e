"""No bridge writes a secret into a recipe, whichever rule made the line, nor shows it."""

import pytest

from pipeline.bridges.recipe import write
from tests.bridges import from_trinity, from_verl, launch

ADDRESSES = ("data.train_files=https://user:hushPW@host/x.parquet", "data.val_files=postgresql://u:hush/x@h")


@pytest.mark.parametrize("script", [
    launch(*ADDRESSES), launch("trainer.project_name=sk-proj-hushhushhush1"),
    "WANDB_API_KEY=hush\n" + launch("trainer.project_name=$WANDB_API_KEY", "trainer.experiment_name=x-$WANDB_API_KEY"),
    launch("actor_rollout_ref.model.path=${HF_TOKEN:-hush}/foo", "trainer.default_local_dir=/x/$HF_TOKEN")])
def test_a_script_of_verl(script):
    made = from_verl(script)
    text = write(made, "test")
    assert "hush" not in text
    assert "oc.env:HF_TOKEN" not in text
    assert made.left_out
    assert all("secret" in why or "carries" in why for _, why in made.left_out)


def test_a_configuration_of_trinity():
    made = from_trinity("""\
project: ${oc.env:OPENAI_API_KEY}
explorer:
  env_vars: {GITHUB_TOKEN: hush, DEPTH: "3", A: "${oc.env:MY_TOKEN,hush}"}
monitor: {monitor_args: {base_url: "http://h/?token=hush", headers: {Authorization: Bearer hush}}}
buffer: {explorer_input: {taskset: {path: "https://hush@host/x"}}}
""")
    text = write(made, "test")
    assert "hush" not in text
    assert "OPENAI_API_KEY" not in text
    assert 'DEPTH: "3"' in text or "DEPTH: '3'" in text
    assert {given.key for given, _ in made.left_out} == {
        "project", "explorer.env_vars.GITHUB_TOKEN", "explorer.env_vars.A", "monitor.monitor_args.base_url",
        "monitor.monitor_args.headers.Authorization", "buffer.explorer_input.taskset.path"}
