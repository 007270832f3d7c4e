"""Texts of the environment are read as the type that a setting wants; elements that a list lacks, stages by number."""

import pytest

from pipeline.check.judge import compose, judged
from pipeline.run.sweep import make_sweep
from pipeline.store.errors import ConfigError
from tests.configs import refused

ARGS = "data_processor.task_pipeline.generator_args"


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.delenv("OURO_TEST", raising=False)


@pytest.mark.parametrize(("key", "text", "value"), [
    ("trainer.save_interval", "2", 2), ("trainer.grad_clip", "1e-1", 0.1), ("explorer.eval_on_startup", "True", True),
    ("name", "2", "2"), ("algorithm.repeat_times", "null", None), ("trainer.save_interval", "1e3", 1000)])
def test_a_text_of_the_environment_is_what_the_setting_wants(monkeypatch, key, text, value):
    section, _, name = key.rpartition(".")
    config = compose([f"{key}=${{oc.env:OURO_TEST,{text}}}"])
    assert (config[section] if section else config)[name] == value
    monkeypatch.setenv("OURO_TEST", text)
    config = compose([f"{key}=${{oc.env:OURO_TEST}}"])
    found = (config[section] if section else config)[name]
    assert (found, type(found)) == (value, type(value))


def test_so_is_one_that_another_setting_names_and_one_of_a_stage():
    config = compose(["name=${oc.env:OURO_TEST,2}", "seed=${name}", "stages.sft.seed=${oc.env:OURO_TEST,3}"])
    assert (config["name"], config["seed"], config["stages"][0]["seed"]) == ("2", 2, 3)


@pytest.mark.parametrize("form", ["${ name }", "${.name}", "${[name]}"])
def test_so_is_one_that_another_form_of_interpolation_names(form):
    assert compose(["name=${oc.env:OURO_TEST,2}", f"seed={form}"])["seed"] == 2


def test_so_is_one_below_a_section_that_stands_for_another():
    """`${.a}` is the section beside it, and its own `${.n}` what stands beside that."""
    fill = {"low": "${.n}", "n": "${oc.env:OURO_TEST,2}"}
    config = compose([f"{ARGS}.a={fill}".replace("'", ""), f"{ARGS}.b=${{.a}}"])
    assert config["data_processor"]["task_pipeline"]["generator_args"]["b"] == {"low": 2, "n": 2}


def test_a_free_argument_is_what_it_would_be_in_a_file():
    config = compose([f"{ARGS}.low=${{oc.env:OURO_TEST,2}}", f"{ARGS}.high='9'"])
    found = config["data_processor"]["task_pipeline"]["generator_args"]
    assert (found["low"], found["high"]) == (2, "9")


def test_a_text_in_quotes_is_meant_as_one():
    assert "needed a whole number, found the text '2'" in refused("trainer.save_interval='2'")


def test_a_text_that_is_no_number_is_refused():
    assert "needed a whole number, found the text 'two'" in refused("trainer.save_interval=${oc.env:OURO_TEST,two}")


@pytest.mark.parametrize(("override", "why"), [
    ("buffer.explorer_input.eval_tasksets.5.limit=4", "eval_tasksets has no element 5: it has 1, counted from 0"),
    ("explorer.auxiliary_models.0.engine_num=1", "explorer.auxiliary_models has no element 0: it is empty")])
def test_an_element_that_a_list_lacks_is_named(override, why):
    assert why in refused(override)
    with pytest.raises(ConfigError, match=why):
        make_sweep([f"{override},9"])


def test_a_stage_that_is_meant_by_its_number_is_told_in_the_users_words():
    _, problems = judged(["stages.0.seed=1"])
    assert problems == ["'stages.0.seed=1': no stage '0' in this recipe. Stages: sft, rft."]


def test_a_text_that_needs_quotes_is_told_so():
    assert "goes in quotes: \"name='ünïcode'\"." in refused("name=ünïcode")
    assert compose(["name='ünïcode'"])["name"] == "ünïcode"


def test_a_setting_of_the_whole_run_in_a_stage_is_told_once():
    _, problems = judged(["stages.sft.project=x"])
    assert problems == ["stage 'sft': project is a setting of the whole run, not of a stage."]


@pytest.mark.parametrize("override", ['algorithm.optimizer.lr="${"', "name='a${'", "stages.rft.model.dtype='${'",
                                      "explorer.env_vars={A: '${'}"])
def test_an_interpolation_without_its_end_is_a_problem_of_its_override(override):
    message = refused(override, "seed=-1")
    assert f"'{override}': '${{' without its '}}'. Needed ${{section.key}} or ${{oc.env:VARIABLE}}." in message
    assert "seed=-1: needed at least 0" in message


def test_a_setting_that_holds_itself_leads_in_a_circle_and_can_be_replaced():
    key = "buffer.explorer_input.system_prompt"
    circle = f"{key}=${{oc.dict.values:buffer.explorer_input}}"
    assert f"key '{key}': {circle.partition('=')[2]} leads in a circle." in refused(circle)


def test_an_element_that_cannot_be_read_leaves_no_other_list_to_judge():
    message = refused("algorithm.optimizer.betas=[0.9,x]")
    assert "key 'algorithm.optimizer.betas.1': needed a number" in message
    assert "betas=[" not in message
