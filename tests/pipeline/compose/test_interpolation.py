"""Texts of the environment are read as the type that a setting wants; elements that a list lacks, stages by number."""

import pytest

from ouroboros.commands.run.sweep import make_sweep
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.store.errors import ConfigError
from tests.configs import broken, problems_of
from tests.golden.messages import refuses

ARGS = "data_processor.task_pipeline.generator_args"


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.delenv("OURO_TEST", raising=False)


@pytest.mark.parametrize(("key", "text", "value"), [
    ("trainer.save_interval", "2", 2), ("trainer.grad_clip", "1e-1", 0.1), ("explorer.eval_on_startup", "True", True),
    ("name", "2", "2"), ("algorithm.repeat_times", "null", None), ("trainer.save_interval", "1e3", 1000)])
def test_a_text_of_the_environment_is_what_the_setting_wants(monkeypatch, key, text, value):
    config = compose([f"{key}=${{oc.env:OURO_TEST,{text}}}"])
    assert at(config, key) == value
    monkeypatch.setenv("OURO_TEST", text)
    config = compose([f"{key}=${{oc.env:OURO_TEST}}"])
    found = at(config, key)
    assert (found, type(found)) == (value, type(value))


def test_so_is_one_that_another_setting_names_and_one_of_a_stage():
    config = compose(["name=${oc.env:OURO_TEST,2}", "seed=${name}", "stages.sft.seed=${oc.env:OURO_TEST,3}"])
    assert (config.name, config.seed, config.stages[0]["seed"]) == ("2", 2, 3)


@pytest.mark.parametrize("form", ["${ name }", "${.name}", "${[name]}"])
def test_so_is_one_that_another_form_of_interpolation_names(form):
    assert compose(["name=${oc.env:OURO_TEST,2}", f"seed={form}"]).seed == 2


def test_so_is_one_below_a_section_that_stands_for_another():
    """`${.a}` is the section beside it, and its own `${.n}` what stands beside that."""
    fill = {"low": "${.n}", "n": "${oc.env:OURO_TEST,2}"}
    config = compose([f"{ARGS}.a={fill}".replace("'", ""), f"{ARGS}.b=${{.a}}"])
    assert config.data_processor.task_pipeline.generator_args["b"] == {"low": 2, "n": 2}


def test_a_free_argument_is_what_it_would_be_in_a_file():
    config = compose([f"{ARGS}.low=${{oc.env:OURO_TEST,2}}", f"{ARGS}.high='9'"])
    found = config.data_processor.task_pipeline.generator_args
    assert (found["low"], found["high"]) == (2, "9")


@pytest.mark.parametrize(("override", "place"), [
    ("trainer.save_interval='2,5'", "trainer.save_interval"), ("trainer.save_interval=true", "trainer.save_interval"),
    ("trainer.save_interval=${oc.env:OURO_TEST,two}", "trainer.save_interval"),
    ("stages.0.seed=1", "'stages.0.seed=1'"),  # by its number, in the user's words
    ("name=ünïcode", "'name=ünïcode'"), ("stages.sft.project=x", "sft: project"),
    ("buffer.explorer_input.system_prompt=${oc.dict.values:buffer.explorer_input}",  # holds itself
     "buffer.explorer_input.system_prompt"),
    ("algorithm.optimizer.betas=[0.9,x]", "algorithm.optimizer.betas.1")])  # and no rule judges the rest of the list
def test_a_mistake_is_one_problem(override, place):
    assert broken(override) == [place]


def test_a_text_with_other_letters_goes_in_quotes():
    assert compose(["name='ünïcode'"]).name == "ünïcode"


@pytest.mark.parametrize("override", ["buffer.explorer_input.eval_tasksets.5.limit=4",
                                      "explorer.auxiliary_models.0.engine_num=1"])
def test_an_element_that_a_list_lacks_is_named(override):
    """The first list has one element, counted from 0, the second is empty."""
    (problem,) = problems_of(override)
    assert problem.key == f"'{override}'"
    assert f"{override.rpartition('.')[0].rpartition('.')[0]} has no element" in problem.needed
    with refuses(ConfigError, "element"):
        make_sweep([f"{override},9"])


@pytest.mark.parametrize("override", ['algorithm.optimizer.lr="${"', "name='a${'", "stages.rft.model.dtype='${'",
                                      "explorer.env_vars={A: '${'}"])
def test_an_interpolation_without_its_end_is_a_problem_of_its_override(override):
    assert broken(override, "seed=-1") == [f"'{override}'", "seed"]
