"""Texts that look like numbers: the letters that were typed reach the setting, the directory and the environment."""

import pytest

from ouroboros.commands.run.sweep import make_sweep
from ouroboros.pipeline.check.judge import judged
from ouroboros.pipeline.compose import axes, yaml_files
from ouroboros.pipeline.compose.recipe import effective
from ouroboros.pipeline.settings.setting import at, leaves, plain
from ouroboros.pipeline.store.errors import ConfigError
from tests.configs import problems_of

TEXTS = ["1e5", "12e4567", "0123", "1_000", "1.50", "7", "0x1f", "0o17", "nan", "NaN", "1.0", "2026-11-25", "1" * 40]
WORDS = ["true", "False"]  # a setting that may be null takes neither
COLUMN = "buffer.explorer_input.taskset.format"


@pytest.mark.parametrize("text", [*TEXTS, *WORDS])
def test_a_text_keeps_its_letters_on_the_command_line(text):
    config, _ = judged([
        f"name={text}", f"+project= {text}", f"data_processor.task_pipeline.split={text}",
        f"{COLUMN}.prompt_key={text}", f"stages.rft.{COLUMN}.response_key={text}",
        f"stages.rft.explorer.env_vars.COMMIT={text}"])
    rft = effective(config, config.stages[1])
    assert [config.name, config.project, config.data_processor.task_pipeline.split, at(config, f"{COLUMN}.prompt_key"),
            at(rft, f"{COLUMN}.response_key"), str(rft.explorer.env_vars["COMMIT"])] == [text] * 6


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_may_be_null_keeps_its_letters(text):
    config, _ = judged([f"model.model_path={text}", f"stages.sft.model.critic_model_path={text}"])
    assert [config.model.model_path, effective(config, config.stages[0]).model.critic_model_path] == [text] * 2


LOST = ["1e5", "12e4567", "1_000", "1.50", "NaN"]  # Hydra hands on 100000.0, inf, 1000, 1.5, nan


INSIDE = {"data_processor.task_pipeline": "{{inputs:[x,{0}],split: {0} }}", "explorer.env_vars": "{{A:{0},B:2}}",
          "model.lora_configs": "[{{name: {0}, lora_rank: 1e1}}]"}


@pytest.mark.parametrize("text", [*TEXTS, *WORDS])
def test_a_text_inside_a_list_or_mapping_keeps_its_letters_or_needs_quotes(text):
    words = {key: f"{key}={value.format(text)}" for key, value in INSIDE.items()}
    config, problems = judged([*words.values()])
    lost = {key for key, word in words.items() if f"'{word}'" in [one.key for one in problems]}
    assert lost == ({*INSIDE} if text in LOST else {*INSIDE} - {"model.lora_configs"} if text in WORDS else set())
    assert all(text in str(plain(at(config, key))) for key in {*INSIDE} - lost if text not in WORDS)
    quoted = judged([f"{key}={value.format(repr(text))}" for key, value in INSIDE.items()])[0]
    assert all(text in [one for _, one in leaves(at(quoted, key))] for key in INSIDE)


def test_numbers_stay_numbers_and_a_setting_that_may_be_null_takes_no_boolean():
    config, _ = judged(["seed=1e3", "model={max_model_len:1_000}", "algorithm.optimizer.lr=1e-5"])
    assert (config.seed, config.model.max_model_len, config.algorithm.optimizer.lr) == (1000, 1000, 1e-5)
    assert [one.key for one in problems_of("model.model_path=false", "name=null")] == ["name", "model.model_path"]
    thousands = "seed=" + "1" * 5000
    assert [one.key for one in problems_of(thousands)] == [f"'{thousands}'"]


@pytest.mark.parametrize(("word", "texts", "names"), [
    ("model.model_path='1e5',100000.0,0123", ["1e5", "100000.0", "0123"], ["b-model_path=1e5", "b-model_path=100000.0",
                                                                           "b-model_path=0123"]),
    ("model.model_path=choice('1e-06','1e-6')", ["1e-06", "1e-6"], ["b-model_path=1e-06", "b-model_path=1e-6"]),
    ("data_processor.task_pipeline.split=m1e-06,m1e-6,'True','true'", ["m1e-06", "m1e-6", "True", "true"],
     ["b-split=m1e-06", "b-split=m1e-6", "b-split=True", "b-split=true"]),
    ("algorithm.optimizer.lr=1e-05,1e-4", [1e-5, 1e-4], ["b-lr=1e-5", "b-lr=0.0001"]),
    ("algorithm.policy_loss_fn_args.x=choice('1e5',1e5,'true')", ["1e5", 1e5, "true"], ["b-x=1e5", "b-x=100000.0",
                                                                                        "b-x=true"]),
    ("seed=range(1,3)", [1, 2], ["b-seed=1", "b-seed=2"])])
def test_the_points_of_an_axis_keep_the_letters_of_texts_and_have_names_of_their_own(word, texts, names):
    points = list(axes.points(axes.read([word])))
    assert [at(judged(overrides)[0], word.partition("=")[0]) for overrides, _ in points] == texts
    assert [axes.name_of("b", differs) for _, differs in points] == names


def test_points_whose_values_hold_commas_have_names_of_their_own():
    """Both would be `b-x=1,y=2,y=3`."""
    one, other = (axes.name_of("b", differs) for differs in ({"x": "1,y=2", "y": "3"}, {"x": "1", "y": "2,y=3"}))
    assert one != other


def test_a_sweep_over_a_text_has_a_run_for_each(tmp_path):
    here = f"checkpoint_root_dir={tmp_path}"
    sweep = make_sweep([here, "name=1e5", "data_processor.task_pipeline.split='1e5',100000.0"])
    assert [point.plan.view.name for point in sweep.points] == ["1e5-split=1e5", "1e5-split=100000.0"]
    assert sweep.view == tmp_path / "runs/ouroboros/1e5"
    for several in ("name=1e5,2e5", "data_processor.task_pipeline.split=1e5,2e5"):  # one name; letters that are lost
        with pytest.raises(ConfigError):
            make_sweep([here, several])


FILE = """name: {0}
data_processor: {{task_pipeline: {{inputs: [x, {0}], split: {0}}}}}
explorer: {{env_vars: {{A: {0}}}}}
stages: [{{stage_name: sft, buffer: {{explorer_input: {{taskset: {{name: {0}}}}}}}}}]
"""


@pytest.mark.parametrize("text", [*TEXTS, *WORDS, "1:30", "off", "0o17", "+1", ".5", "1e+05"])
def test_a_text_keeps_its_letters_in_a_file(tmp_path, text):
    """YAML takes 0123 for 83, 1:30 for 90 and off for false."""
    path = tmp_path / "x.yaml"
    path.write_text(FILE.format(text))
    said, problems = yaml_files.read(path, "x")
    assert [str(one) for one in (
        said["name"], *said["data_processor"]["task_pipeline"]["inputs"][1:], said["data_processor"]["task_pipeline"][
            "split"], said["explorer"]["env_vars"]["A"], said["stages"][0]["buffer"]["explorer_input"]["taskset"][
                "name"])] == [text] * 5
    assert not problems


@pytest.mark.parametrize(("header", "text", "chosen"), [
    ("", "model_path: {0}\nmax_model_len: 1e3\n", "model=mine"),
    ("# @package _global_\n", "model: {{model_path: {0}, max_model_len: 1e3}}\n", "model=mine"),
    ("# @package model\n", "model_path: {0}\nmax_model_len: 1e3\n", "model=mine"),
    ("", "model_path: {0}\nmax_model_len: 1e3\n", "recipe=with_defaults")])  # read by Hydra itself
@pytest.mark.parametrize("letters", ["1e5", "0123", "1_000"])
def test_a_text_keeps_its_letters_in_a_file_of_a_group(tmp_path, monkeypatch, header, text, chosen, letters):
    monkeypatch.chdir(tmp_path)
    for group in ("model", "recipe"):
        (tmp_path / "conf" / group).mkdir(parents=True)
    (tmp_path / "conf/model/mine.yaml").write_text(header + text.format(letters))
    (tmp_path / "conf/recipe/with_defaults.yaml").write_text("# @package _global_\ndefaults: [/model/mine]\nseed: 2")
    config, _ = judged([chosen])
    assert (config.model.model_path, config.model.max_model_len) == (letters, 1000)
