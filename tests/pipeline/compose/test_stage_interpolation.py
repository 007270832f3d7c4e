"""Interpolations in a stage that sets what they name."""

import pytest
from omegaconf import OmegaConf

from ouroboros.pipeline.check.judge import compose, judged
from ouroboros.pipeline.compose.interpolation import resolved
from ouroboros.pipeline.compose.recipe import effective
from ouroboros.pipeline.compose.stage_interpolation import in_stages

RUN = {"seed": 1, "buffer": {"batch_size": 16, "train_batch_size": "${buffer.batch_size}", "total_steps": 4}}


def stage(entry: dict, run: dict = RUN) -> dict:
    """The entry of the only stage, resolved."""
    problems: list = []
    made = resolved(in_stages({**run, "stages": [{"stage_name": "s", **entry}]}), problems)
    assert not problems
    return made["stages"][0]


@pytest.mark.parametrize("form", ["${ buffer.batch_size }", "${.batch_size}", "${buffer[batch_size]}",
                                  "${..buffer.batch_size}", "${[buffer][batch_size]}"])
def test_a_setting_of_the_run_has_the_value_of_the_stage(form):
    """Every form of OmegaConf's grammar that names a setting: blanks, the same section, brackets."""
    run = {"buffer": {"batch_size": 16, "train_batch_size": form}}
    assert OmegaConf.create(run).buffer.train_batch_size == 16
    assert stage({"buffer": {"batch_size": 64}}, run)["buffer"] == {"batch_size": 64, "train_batch_size": 64}


@pytest.mark.parametrize(("entry", "own"), [
    ({"seed": 2}, {"seed": 2}),  # sets nothing that is named
    ({"buffer": {"batch_size": 64, "train_batch_size": 8}}, {"buffer": {"batch_size": 64, "train_batch_size": 8}}),
    ({"buffer": {"batch_size": 64, "total_steps": "${buffer.batch_size}", "train_batch_size": 1}},
     {"buffer": {"batch_size": 64, "total_steps": 64, "train_batch_size": 1}}),
    ({"buffer": {"total_steps": "${.batch_size}"}}, {"buffer": {"total_steps": 16}}),  # the run's, by a relative name
    ({"seed": "${buffer.train_batch_size}", "buffer": {"batch_size": 64}},  # by another interpolation
     {"seed": 64, "buffer": {"batch_size": 64, "train_batch_size": 64}}),
])
def test_an_entry_has_what_it_sets_and_what_depends_on_it(entry, own):
    assert stage(entry) == {"stage_name": "s", **own}


def test_a_section_that_is_named_is_the_merged_one():
    run = {"a": {"x": 1, "y": 2}, "b": "${a}"}
    assert stage({"a": {"x": 5}}, run) == {"stage_name": "s", "a": {"x": 5, "y": 2}, "b": {"x": 5, "y": 2}}


def test_a_list_of_the_run_is_the_stage_s_as_a_whole():
    run = {"n": 1, "sets": [{"name": "a", "limit": 3}, {"name": "b", "limit": "${n}"}]}
    assert stage({"n": 7}, run)["sets"] == [{"name": "a", "limit": 3}, {"name": "b", "limit": 7}]


def test_stages_differ_in_what_an_interpolation_of_the_run_means():
    config = compose(["buffer.train_batch_size=${buffer.batch_size}", "buffer.batch_size=16",
                      "stages.sft.buffer.batch_size=32"])
    sizes = [effective(config, entry).buffer.train_batch_size for entry in config.stages]
    assert sizes == [32, 16]


def test_a_circle_through_a_stage_is_a_problem_of_the_stage():
    problems = judged(["buffer.train_batch_size=${buffer.batch_size}",
                       "stages.rft.buffer.batch_size=${buffer.train_batch_size}"])[1]
    assert {(problem.stages, problem.key) for problem in problems} == {
        (("rft",), "buffer.batch_size"), (("rft",), "buffer.train_batch_size")}
