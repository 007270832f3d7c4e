"""Directories and files of the user with names that have another meaning in Hydra's overrides, a shell or a URL."""

import json
import os
from pathlib import Path

import pytest

from ouroboros.commands import cli
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.compose.origins import origin

NAMES = ["project (1)", "Übung", "[x]", "{a", "a,b", "a=b", "it's", 'b"\'"c', "#h", "a;b", "${x}", "日本語",
         "new\nline", "back\\", "-dash", "x~", "50%"]


def written(place: Path, recipe: str, name: str = "project", chosen: str = "project") -> None:
    (place / "conf" / "recipe").mkdir(parents=True)
    (place / "conf" / "config.yaml").write_text(f"defaults: [{{recipe: {json.dumps(chosen)}}}]")
    (place / "conf" / "recipe" / f"{name}.yaml").write_text(recipe)


@pytest.mark.parametrize("name", NAMES)
def test_a_project_in_a_directory_of_such_a_name_is_composed(tmp_path, monkeypatch, name):
    written(tmp_path / name, "# @package _global_\nseed: 7\n")
    monkeypatch.chdir(tmp_path / name)
    assert compose([]).seed == 7
    assert origin([], "seed") == str(tmp_path / name / "conf" / "recipe" / "project.yaml")


@pytest.mark.parametrize("name", ["ümlaut", "a (1)", "it's", "日本語", "x.y", "0", "1e5", "1_000", "null", "True",
                                  "nan", "-x", "_self_"])
def test_a_recipe_of_such_a_name(tmp_path, monkeypatch, name):
    written(tmp_path, "# @package _global_\ndefaults: [base, _self_]\nseed: 7\n", name, name)
    (tmp_path / "conf" / "recipe" / "base.yaml").write_text("# @package _global_\nmodel: {max_prompt_tokens: 9}\n")
    monkeypatch.chdir(tmp_path)
    assert (compose([]).seed, compose([]).model.max_prompt_tokens) == (7, 9)
    assert compose([f'recipe="conf/recipe/{name}.yaml"']).seed == 7


def test_two_recipes_whose_names_differ_in_signs_only(tmp_path, monkeypatch):
    written(tmp_path, "seed: 7\n", "a b")
    (tmp_path / "conf" / "recipe" / "a-b.yaml").write_text("seed: 8\n")
    monkeypatch.chdir(tmp_path)
    assert [compose([f"recipe={name}"]).seed for name in ("a b", "a-b", "a b")] == [7, 8, 7]


def test_a_tilde_that_is_nobodys_home_is_a_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init", "~nobody-here"]) == 0
    assert (tmp_path / "~nobody-here" / "conf").is_dir()


INPUT = [*(f"{command} {file}" for command in ("import verl", "import trinity", "serve")
           for file in ("PIPE", "/dev/zero")),
         "init new --model MODEL --from PIPE", "init new --model MODEL --from /dev/zero", "import verl MODEL",
         "config check recipe=PIPE"]


@pytest.mark.parametrize("words", map(str.split, INPUT), ids=INPUT)
def test_what_never_ends_is_not_read(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("PIPE.yaml" if "recipe=PIPE" in words else "PIPE")
    Path("MODEL").mkdir()
    Path("MODEL", "config.json").write_text('{"model_type": "qwen2"}')
    assert cli.main([word.replace("recipe=PIPE", "recipe=PIPE.yaml") for word in words]) == 2
    said = capsys.readouterr().err
    assert any(word in said for word in ("pipe", "no such file", "no directory", "is a directory"))
    assert not Path("new").exists()
