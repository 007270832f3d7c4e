"""Mistakes in a file of the user's: all at once, with their lines, beside the problems of its values."""

import pytest

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.compose import yaml_files
from tests.configs import problems_of
from tests.golden.messages import wording


def found(tmp_path, text: str) -> tuple[object, list[tuple]]:
    """The content of a file with this text, and (key, line) of its problems."""
    path = tmp_path / "x.yaml"
    path.write_text(text)
    content, problems = yaml_files.read(path, "x")
    assert all(problem.file == str(path) for problem in problems)
    return content, [(problem.key, problem.line) for problem in problems]


@pytest.mark.parametrize(("text", "content", "problems"), [
    # keys that occur again; their sections are one
    ("a: 1\nb: {c: 1, c: 2}\na: 3\nm: {d: 4}\nm: {e: 5, d: 6}\n", {"a": 3, "b": {"c": 2}, "m": {"d": 6, "e": 5}},
     [("b.c", 2), ("a", 3), ("m", 5), ("m.d", 5)]),
    ('1: a\n"1": b\n', {"1": "b"}, [("1", 2)]),  # one key in the JSON that a run keeps of its settings
    # interpolations that cannot be read are left out
    ('a: {b: "${", c: 1}\nd: ["${x}", "${y z}"]\n', {"a": {"c": 1}, "d": ["${x}"]}, [("a.b", 1), ("d.1", 2)]),
    # aliases and merge keys, also of what they are in; an anchor that nothing repeats is a comment
    ("a: &a {b: 1}\nc: {<<: *a, d: *a, e: &e 2, f: *e}\n", {"a": {"b": 1}, "c": {"e": 2}},
     [("c.<<", 2), ("c.d", 2), ("c.f", 2)]),
    ("a: &a\n  b: {c: *a, d: 1}\ne: &e [2, *e]\n", {"a": {"b": {"d": 1}}, "e": [2]}, [("a.b.c", 2), ("e.1", 3)]),
    ("a: {true: 1, 1.5: 2, on: 3, [x]: 4, ~: 5, ok: 6}\n", {"a": {"ok": 6}}, [("a", 1)] * 5),  # keys that are no names
    ("seed: 1:30\nname: '1:30'\nratio: 0.5\n", {"name": "1:30", "ratio": 0.5}, [("seed", 1)]),  # base 60
    ("seed: 010\nname: 010\nratio: 0\nstages: ['010', 10]\n", {"name": "010", "ratio": 0, "stages": ["010", 10]},
     [("seed", 1)]),  # base 8
    ("seed: !!set {1}\nname: !!binary aGk=\nratio: !!float 1\nstages: [!own a, b]\n", {"ratio": 1.0, "stages": ["b"]},
     [("seed", 1), ("name", 2), ("stages.0", 4)]),  # tags
    ("seed: ???\nmodel: {model_path: '???', dtype: bfloat16}\n", {"model": {"dtype": "bfloat16"}},
     [("seed", 1), ("model.model_path", 2)]),  # OmegaConf would take the defaults
])
def test_every_mistake_is_reported_with_its_line_and_left_out(tmp_path, text, content, problems):
    assert found(tmp_path, text) == (content, problems)


@pytest.mark.parametrize("word", ["false", "False", "off", "yes"])
def test_a_variable_of_the_environment_is_the_text_that_stands_there(tmp_path, word):
    """YAML takes each of them for a boolean."""
    (tmp_path / "x.yaml").write_text(f"explorer: {{env_vars: {{A: {word}, B: 2}}, eval_on_startup: {word}}}\n")
    said, _ = yaml_files.read(tmp_path / "x.yaml", "x")
    assert said["explorer"]["env_vars"] == {"A": word, "B": 2}
    assert isinstance(said["explorer"]["eval_on_startup"], bool)


def test_a_mistake_in_a_file_hides_no_other_problem(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf/recipe").mkdir(parents=True)
    text = 'seed: 1\nseed: -2\nmodel.dtype: float32\nmodel: {init: {enable: true}}\n'
    text += 'algorithm: {optimizer: {lr: "${"}}\n'
    (tmp_path / "conf/recipe/mine.yaml").write_text(text + "buffer: {explorer_input.taskset.name: a}\nfoo: 1\n")
    found = {(one.key, one.line): one for one in problems_of("recipe=mine")}
    assert set(found) == {("seed", 2), ("seed", None), ("algorithm.optimizer.lr", 5), ("foo", None),
                          ("model.dtype", None), ("buffer.explorer_input.taskset.name", None)}
    assert "model: {dtype: ...}" in found["model.dtype", None].do
    wording(found["buffer.explorer_input.taskset.name", None].do, "explorer_input: {taskset: {name")
    (tmp_path / "conf/recipe/other.yaml").write_text("model: {init: {enable: true}}\nexplorer: {env_vars: {A: off}}\n")
    assert compose(["recipe=other"]).explorer.env_vars == {"A": "off"}
