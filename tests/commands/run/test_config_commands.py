"""`ouro config` and `ouro stages`: what they say of settings and of stages."""

import shlex
import sys

import pytest

from ouroboros.commands import cli
from ouroboros.commands.run import invoke
from tests.golden.messages import wording


def test_config_show_says_what_follows_from_the_settings(capsys):
    assert cli.main(["config", "show", "buffer.batch_size=6", "algorithm.repeat_times=4", "buffer.train_batch_size=48",
                     "buffer.total_steps=10"]) == 0
    out = capsys.readouterr().out
    wording(out, "20 steps", "6 tasks", "4 rollouts", "= 24", "10 optimizer", "48 experiences", "1,728")
    import yaml

    assert yaml.safe_load(out)["buffer"]["batch_size"] == 6


def test_config_explain_a_setting(capsys):
    assert cli.main(["config", "explain", "algorithm.optimizer.lr", "algorithm.optimizer.lr=0.5"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert {"type float", "default 1e-06", "value now 0.5"} <= set(lines)
    wording(lines, ">= 0", "<= 1", "sft 0.001", "algorithm.optimizer.lr=0.5", "(conf/recipe/countdown.yaml)")


def test_the_page_of_settings_is_what_the_settings_say(capsys):
    """When this fails: ouro config reference > docs/configuration.md"""
    assert cli.main(["config", "reference"]) == 0
    page = capsys.readouterr().out
    assert page == (invoke.HOME / "docs" / "configuration.md").read_text()
    wording(page, "`trainer.zero_stage`")


def test_config_explain_a_prefix_a_group_and_a_misspelling(capsys):
    cli.main(["config", "explain", "algorithm.optimizer"])
    assert "algorithm.optimizer.weight_decay" in capsys.readouterr().out
    cli.main(["config", "explain", "recipe"])
    assert "countdown" in capsys.readouterr().out
    assert cli.main(["config", "explain", "weight_decay"]) == 2
    wording(capsys.readouterr().err, "'algorithm.optimizer.weight_decay'")


@pytest.mark.parametrize(("key", "code", "words"), [
    # what a change re-runs
    ("model.model_path", 0, "by content and not by path; another model re-runs the first training stage"),
    ("data_processor.task_pipeline.inputs", 0, "not by path; other content re-runs these kinds of stage"),
    ("checkpoint_root_dir", 0, "below another directory nothing is made yet"),
    ("stages", 0, "one whose own settings change runs again"),
    ("buffer.batch_size", 0, "changing it re-runs these kinds of stage, and those that read them: train, rft"),
    ("trainer.ranks", 0, "changing it re-runs nothing"),
    # what to use for what is not here
    ("stages.stf.seed", 2, "no stage 'stf' in this recipe. Did you mean 'sft'? Stages: sft, rft."),
    ("ray_namespace", 2, "no key 'ray_namespace': there is no Ray: Snakemake starts the stages"),
    ("stages.rft.trainer.trainer_type", 2, "no key 'trainer.trainer_type': DeepSpeed ZeRO trains"),
    ("actor_rollout_ref.rollout.n", 2, "which is one of veRL's: here `algorithm.repeat_times`."),
    ("data.train_batch_size", 2, "one of veRL's: here `synchronizer.sync_interval`, divided by ppo_mini_batch_size."),
    ("actor_rollout_ref.hybrid_engine", 2, "one of veRL's: not meant here: set by mode=colocate."),
    ("optim.lr", 2, "which is one of veRL's: here `algorithm.optimizer.lr`.")])
def test_config_explain_says_what_a_change_re_runs_or_what_to_use(key, code, words, capsys):
    assert cli.main(["config", "explain", key]) == code
    shown = capsys.readouterr()
    assert words in " ".join((shown.out + shown.err).split())
    assert key != "stages" or "in stage" not in shown.out  # a setting of the whole run


def test_config_explain_a_setting_of_one_stage(capsys):
    assert cli.main(["config", "explain", "stages.sft.buffer.batch_size"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "stages.sft.buffer.batch_size"
    now, place, in_stage, own = lines[-4:]
    assert [now.split()[-1], *in_stage.split()[-2:]] == ["64", "sft", "256"]
    wording([place, own], "conf/recipe/countdown.yaml", "own entry")


def test_config_explain_an_entry_of_free_arguments(capsys):
    key = "algorithm.policy_loss_fn_args.clip_range_low"
    assert cli.main(["config", "explain", key, f"{key}=0.125"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == [key, "entry of algorithm.policy_loss_fn_args"]
    assert "value now 0.125" in lines
    for key in ("algorithm.advantage_fn_args.epsilon", "algorithm.policy_loss_fn_args.clip_range_low.deeper"):
        assert cli.main(["config", "explain", key]) == 0
        wording(capsys.readouterr().out, "value")


def test_commands_of_stages_can_be_typed(tmp_path, capsys):
    root = tmp_path / "two words"
    assert cli.main(["stages", f"checkpoint_root_dir='{root}'"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "ouroboros.stages.tasks" in line)
    words = shlex.split(line)
    assert words[:4] == ["command", sys.executable, "-m", "ouroboros.stages.tasks"]
    assert words[4].startswith(f"{root}/store/tasks-")
    assert len(words) == 5


def test_stages_are_written_only_when_asked(tmp_path, capsys):
    root = f"checkpoint_root_dir={tmp_path}"
    assert cli.main(["stages", root]) == 0
    assert "rft  (rft)" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
    assert cli.main(["stages", root, "--write"]) == 0
    assert len(list(tmp_path.glob("store/*/stage.json"))) == 8
    assert cli.main(["status", root]) == 0
    assert capsys.readouterr().out.count("waiting") == 8


def test_a_secret_that_nobody_gave_is_told_as_such(capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "hush-hush")
    key = "explorer.env_vars.OPENAI_API_KEY"
    assert cli.main(["config", "explain", key]) == 0
    wording(capsys.readouterr().out, "value")
    assert cli.main(["config", "explain", key, f"{key}=${{oc.env:OPENAI_API_KEY}}"]) == 0
    wording(capsys.readouterr().out, "${oc.env:OPENAI_API_KEY}")
