"""What is wrong in a file of the user's: told with its line, all of it at once, and beside what the rest says."""

import pytest

from pipeline.check.judge import compose
from pipeline.compose import yaml_files
from tests.configs import refused


def found(tmp_path, text: str) -> tuple[object, list[str]]:
    """What a file with this text says, and its problems, the file's name taken off."""
    path, problems = tmp_path / "x.yaml", []
    path.write_text(text)
    said, changed = yaml_files.read(path, "x", problems)
    assert changed == bool(problems)
    return said, [problem.removeprefix("x, ") for problem in problems]


def test_every_key_that_is_there_again_is_told_and_its_sections_are_one(tmp_path):
    said, problems = found(tmp_path, "a: 1\nb: {c: 1, c: 2}\na: 3\nm: {d: 4}\nm: {e: 5, d: 6}\n")
    assert said == {"a": 3, "b": {"c": 2}, "m": {"d": 6, "e": 5}}
    assert problems == [f"line {line}: the key '{key}' is there again, first in line {first}; needed each once."
                        for line, key, first in ((2, "b.c", 2), (3, "a", 1), (5, "m", 4), (5, "m.d", 4))]


def test_an_interpolation_that_cannot_be_read_is_told_with_its_key_and_left_out(tmp_path):
    said, problems = found(tmp_path, 'a: {b: "${", c: 1}\nd: ["${x}", "${y z}"]\n')
    assert said == {"a": {"c": 1}, "d": ["${x}"]}
    assert [line.partition(". Needed")[0] for line in problems] == [
        "line 1: key 'a.b': '${' without its '}'", "line 2: key 'd.1': what stands in a '${...}' is no name"]


def test_an_anchor_may_stand_in_several_places(tmp_path):
    said, problems = found(tmp_path, "a: &a {b: 1}\nc: {<<: *a, d: *a}\n")
    assert (said["c"], problems) == ({"b": 1, "d": {"b": 1}}, [])


def test_what_holds_itself_is_told_and_left_out(tmp_path):
    said, problems = found(tmp_path, "a: &a\n  b: {c: *a, d: 1}\ne: &e [2, *e]\nf: &f {g: {<<: *f, h: 3}}\ni: *a\n")
    assert said == {"a": {"b": {"d": 1}}, "e": [2], "f": {"g": {"h": 3}}, "i": {"b": {"d": 1}}}
    assert problems == [f"line {line}: key '{key}' holds itself, by an alias of what it is in; needed values that end."
                        for line, key in ((1, "a.b.c"), (3, "e.1"), (4, "f.g.<<"))]


def test_a_number_and_the_same_text_are_one_key(tmp_path):
    """As they are in the JSON that a run keeps of its settings."""
    assert found(tmp_path, '1: a\n"1": b\n')[1] == [
        "line 2: the key '1' is there again, first in line 1; needed each once."]


@pytest.mark.parametrize("word", ["false", "False", "off", "yes"])
def test_a_variable_of_the_environment_is_the_text_that_stands_there(tmp_path, word):
    """YAML takes each of them for a boolean."""
    (tmp_path / "x.yaml").write_text(f"explorer: {{env_vars: {{A: {word}, B: 2}}, eval_on_startup: {word}}}\n")
    said, changed = yaml_files.read(tmp_path / "x.yaml", "x", [])
    assert said["explorer"]["env_vars"] == {"A": word, "B": 2}
    assert changed
    assert isinstance(said["explorer"]["eval_on_startup"], bool)


def test_what_is_wrong_in_a_file_hides_no_other_problem(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf/recipe").mkdir(parents=True)
    text = 'seed: 1\nseed: -2\nmodel.dtype: float32\nmodel: {init: {enable: true}}\n'
    text += 'algorithm: {optimizer: {lr: "${"}}\n'
    (tmp_path / "conf/recipe/mine.yaml").write_text(text + "buffer: {explorer_input.taskset.name: a}\nfoo: 1\n")
    message = refused("recipe=mine")
    for words in ("mine.yaml, line 2: the key 'seed'", "line 5: key 'algorithm.optimizer.lr': '${'", "seed=-2: needed",
                  "write model: {dtype: ...}.", "write explorer_input: {taskset: {name: ...}}.", "unknown key 'foo'"):
        assert message.count(words) == 1
    (tmp_path / "conf/recipe/other.yaml").write_text("model: {init: {enable: true}}\nexplorer: {env_vars: {A: off}}\n")
    assert compose(["recipe=other"])["explorer"]["env_vars"] == {"A": "off"}


def test_a_number_to_base_60_is_refused(tmp_path):
    said, problems = found(tmp_path, "name: 1:30\nother: '1:30'\nratio: 0.5\n")
    assert said == {"other": "1:30", "ratio": 0.5}
    assert [line.partition(":")[0] for line in problems] == ["line 1"]
