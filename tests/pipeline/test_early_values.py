"""Interpolations beside stages that set what they name."""

import pytest
from omegaconf import OmegaConf

from pipeline import cli
from pipeline.compose.early_values import early_values
from pipeline.run.sweep import make_sweep
from tests.configs import places

RUN = {"seed": 1, "name": "${oc.env:HOME}", "buffer": {"batch_size": 16, "train_batch_size": "${buffer.batch_size}"}}


def stages(*entries: dict) -> dict:
    return {**RUN, "stages": [{"stage_name": f"s{index}", **entry} for index, entry in enumerate(entries)]}


def test_a_stage_that_sets_what_an_interpolation_names_is_told():
    """s0 sets the batch size alone; s1 the result too; s2 neither; s3 writes the interpolation itself."""
    found = early_values(stages(
        {"buffer": {"batch_size": 64}}, {"buffer": {"batch_size": 64, "train_batch_size": 64}}, {"seed": 2},
        {"buffer": {"batch_size": 32, "total_steps": "${buffer.batch_size}", "train_batch_size": 1}}))
    assert places(found) == ["s0: buffer.train_batch_size", "s3: buffer.total_steps"]
    assert early_values(stages()) == []


@pytest.mark.parametrize("form", ["${ buffer.batch_size }", "${.batch_size}", "${buffer[batch_size]}",
                                  "${..buffer.batch_size}", "${[buffer][batch_size]}"])
def test_every_form_that_names_a_setting_is_read(form):
    """Of OmegaConf's grammar: blanks, a setting of the same section, brackets. None is a resolver (a colon)."""
    run = {"batch_size": 16, "train_batch_size": form, "total_steps": "${oc.env:buffer}"}
    (problem,) = early_values({"buffer": run, "stages": [{"stage_name": "s", "buffer": {"batch_size": 64}}]})
    assert (places([problem]), problem.found) == (["s: buffer.train_batch_size"], form)
    assert OmegaConf.create({"buffer": {"batch_size": 16, "x": form}}).buffer.x == 16


def test_what_a_stage_says_of_its_own_section_is_its_own():
    """`${.batch_size}` in a stage's entry is filled in with what stands beside it there."""
    entry = {"stage_name": "s", "buffer": {"batch_size": 64, "train_batch_size": "${.batch_size}"}}
    run = {"buffer": {"batch_size": 16}, "stages": [entry]}
    assert OmegaConf.to_container(OmegaConf.create(run), resolve=True)["stages"][0]["buffer"]["train_batch_size"] == 64
    assert early_values(run) == []


def test_a_sweep_tells_it_once(tmp_path):
    """Both points say it of rft, by the recipe that they share of sft too."""
    told = "buffer.train_batch_size=${buffer.batch_size}"
    words = [told, "stages.rft.buffer.batch_size=32", "seed=1,2", f"checkpoint_root_dir={tmp_path}"]
    assert [line.partition(": ")[0] for line in make_sweep(words).warnings] == ["stage 'sft'", "stage 'rft'"]


def test_the_check_tells_it(capsys):
    words = ["buffer.train_batch_size=${buffer.batch_size}", "stages.rft.buffer.batch_size=32"]
    assert cli.main(["config", "check", "--no-data", "--elsewhere", *words]) in (0, 2)
    assert "stage 'rft': buffer.train_batch_size=${buffer.batch_size}:" in capsys.readouterr().out
