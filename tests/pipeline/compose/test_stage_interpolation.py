"""Interpolations in a stage that sets what they name."""

import pytest
from omegaconf import OmegaConf

from ouroboros.pipeline.check.judge import compose, judged
from ouroboros.pipeline.compose.interpolation import resolved
from ouroboros.pipeline.compose.recipe import effective
from ouroboros.pipeline.settings.setting import at
from tests.configs import broken

ARGS = "data_processor.task_pipeline.generator_args"
SIZE, STEPS, EVERY = "buffer.batch_size", "buffer.total_steps", "trainer.save_interval"
RUN = {"seed": 1, "buffer": {"batch_size": 16, "train_batch_size": "${buffer.batch_size}", "total_steps": 4}}


def stage(entry: dict, run: dict = RUN) -> dict:
    """The entry of the only stage, resolved."""
    made, problems = resolved({**run, "stages": [{"stage_name": "s", **entry}]})
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
     {"seed": 64, "buffer": {"batch_size": 64, "train_batch_size": 64}})])
def test_an_entry_has_what_it_sets_and_what_depends_on_it(entry, own):
    assert stage(entry) == {"stage_name": "s", **own}


def test_a_section_that_is_named_is_the_merged_one():
    config = compose([f"{ARGS}={{tasks: 4, demonstrations: 4, dirt: 0.5}}", f"explorer.env_vars=${{{ARGS}}}",
                      f"stages.rft.{ARGS}.tasks=9"])
    assert [effective(config, entry).explorer.env_vars for entry in config.stages] == [
        {"tasks": 4, "demonstrations": 4, "dirt": 0.5}, {"tasks": 9, "demonstrations": 4, "dirt": 0.5}]


def test_a_list_of_the_run_is_the_stage_s_as_a_whole():
    run = {"n": 1, "sets": [{"name": "a", "limit": 3}, {"name": "b", "limit": "${n}"}]}
    assert stage({"n": 7}, run)["sets"] == [{"name": "a", "limit": 3}, {"name": "b", "limit": 7}]


def values(words: list[str], *keys: str) -> list[list]:
    """The values of settings in the stages sft and rft of the default recipe."""
    config, problems = judged(words)
    assert not problems
    return [[at(effective(config, entry), key) for key in keys] for entry in config.stages]


@pytest.mark.parametrize(("words", "keys", "expected"), [
    # what another stage sets; its own interpolations mean its values, whether it or the run has them
    (["stages.sft.seed=7", f"stages.sft.{SIZE}=${{seed}}", "stages.rft.seed=9",
      f"stages.rft.{SIZE}=${{stages.0.{SIZE}}}"], ["seed", SIZE], [[7, 7], [9, 7]]),
    (["stages.sft.seed=7", f"{EVERY}=${{seed}}", f"stages.rft.{SIZE}=${{stages[0].{EVERY}}}"], [EVERY, SIZE],
     [[7, 256], [1, 7]]),
    ([f"{STEPS}=${{stages.0.{SIZE}}}", f"stages.sft.{SIZE}=${{seed}}", "stages.sft.seed=7", "stages.rft.seed=9"],
     ["seed"], [[7], [9]]),
    # what it has from the run
    ([f"{EVERY}=5", f"stages.rft.seed=${{stages.0.{EVERY}}}"], ["seed"], [[1], [5]]),
    # two stages that name each other, in no circle
    (["stages.sft.seed=${stages.1.seed}", "stages.rft.seed=4", "stages.sft.buffer.batch_size=3",
      "stages.rft.buffer.batch_size=${stages.0.buffer.batch_size}"], ["seed", SIZE], [[4, 3], [4, 3]]),
    # relative ones, of the run and of an entry
    (["explorer.env_vars={A: 1, B: '${.A}'}", "stages.rft.explorer.env_vars.A=2"], ["explorer.env_vars"],
     [[{"A": 1, "B": 1}], [{"A": 2, "B": 2}]]),
    (["stages.rft.buffer.batch_size=${..seed}", "stages.rft.seed=8"], [SIZE], [[256], [8]]),
    # a section over a named one, merged with it
    (["explorer.env_vars=${monitor.monitor_args}", "monitor.monitor_args={A: 1, B: 2}",
      "stages.rft.explorer.env_vars={C: 3}"], ["explorer.env_vars"], [[{"A": 1, "B": 2}], [{"A": 1, "B": 2, "C": 3}]]),
    # inside lists
    (["algorithm.optimizer.betas=[0.5,${.0}]", "stages.rft.algorithm.optimizer.betas=[0.7,${..betas[0]}]"],
     ["algorithm.optimizer.betas"], [[[0.5, 0.5]], [[0.7, 0.7]]]),
    # inside a text, and a name that is composed
    (["explorer.env_vars.A='b${buffer.batch_size}x${seed}'", "stages.sft.seed=5", "stages.rft.buffer.batch_size=8"],
     ["explorer.env_vars"], [[{"A": "b256x5"}], [{"A": "b8x1"}]]),
    (["name=seed", "stages.rft.buffer.batch_size='${${name}}'", "stages.rft.seed=6"], [SIZE], [[256], [6]])])
def test_an_interpolation_means_the_values_of_the_stage_that_it_stands_in(words, keys, expected):
    assert values(words, *keys) == expected


@pytest.mark.parametrize(("words", "places"), [
    (["stages.sft.seed=${stages.1.seed}", "stages.rft.seed=${stages.0.seed}"], ["rft: seed", "sft: seed"]),
    (["seed=${buffer.batch_size}", "buffer.batch_size=${seed}", "stages.rft.seed=3"], ["buffer.batch_size", "seed"]),
    (["buffer.train_batch_size=${buffer.batch_size}", "stages.rft.buffer.batch_size=${buffer.train_batch_size}"],
     ["rft: buffer.batch_size", "rft: buffer.train_batch_size"]),  # through the run's
    (["seed=${no.where}"], ["seed"]),  # once, and not for each stage
    (["stages.rft.seed=${stages.7.seed}"], ["rft: seed"]),
    (["stages.rft.model=null"], ["rft: model"]), (["seed=???"], ["seed"]), (["stages.rft.seed=???"], ["rft: seed"]),
    ([f"stages.rft.{ARGS}=null"], [f"rft: {ARGS}"])])
def test_what_cannot_be_merged_or_resolved_is_one_problem(words, places):
    assert broken(*words) == places
