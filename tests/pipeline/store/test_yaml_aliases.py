"""YAML whose aliases repeat each other is refused before anything of that size is made."""

import time
from textwrap import indent

import pytest

from ouroboros.commands.bridges.source import read_yaml
from ouroboros.pipeline.compose import yaml_files
from ouroboros.pipeline.settings.algorithms import own, parts
from ouroboros.pipeline.store.digests import digest_meaning
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.yaml_aliases import MOST, load
from tests.configs import refused
from tests.golden.messages import refuses

LISTS = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True))
MAPPINGS = "a: &a {k: 1}\n" + "".join(
    f"{name}: &{name} {{w: *{before}, x: *{before}, y: *{before}, z: *{before}}}\n"
    for before, name in zip("abcdefghijkl", "bcdefghijklm", strict=True))
MERGES = "a: &a {k: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}], {name}: 1}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True))
BOMBS = pytest.mark.parametrize("text", [LISTS, MAPPINGS, MERGES], ids=["lists", "mappings", "merges"])


@pytest.fixture(autouse=True)
def soon(monkeypatch, tmp_path):
    """Each of them would take minutes, or all memory, if it were built."""
    monkeypatch.chdir(tmp_path)
    begin = time.process_time()
    yield
    assert time.process_time() - begin < 5


@BOMBS
def test_it_is_refused_wherever_yaml_of_the_user_is_read(tmp_path, text):
    (tmp_path / "x.yaml").write_text(text)
    (tmp_path / "conf" / "algorithm").mkdir(parents=True)
    for read in (lambda: load(text, "x.yaml"), lambda: yaml_files.read(tmp_path / "x.yaml", "x.yaml"),
                 lambda: read_yaml(text, "x.yaml"), lambda: digest_meaning("x.yaml", "x.yaml")):
        with refuses(ConfigError, "x.yaml"):
            read()
    (tmp_path / "conf" / "algorithm" / "x.yaml").write_text(text)
    with refuses(ConfigError, "aliases"):
        parts("x")
    assert "x" in own()  # named, it fails; all others can be read


@BOMBS
def test_a_recipe_and_what_its_defaults_name(tmp_path, text):
    (tmp_path / "x.yaml").write_text("explorer:\n  env_vars:\n" + indent(text, "    "))
    assert "aliases" in refused("recipe=x.yaml")
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "m.yaml").write_text("init:\n" + indent(text, "  "))
    (tmp_path / "x.yaml").write_text("# @package _global_\ndefaults: [{/model: m}, _self_]\nname: x\n")
    assert "m.yaml" in refused("recipe=x.yaml")


def test_aliases_that_come_to_little_keep_working():
    assert load("a: &a [1, 2]\nb: {c: *a, <<: {d: *a}}\n", "x") == {"a": [1, 2], "b": {"c": [1, 2], "d": [1, 2]}}
    assert load("a: &a {b: *a}\n", "x")["a"]["b"]["b"]["b"] is not None  # what holds itself is told elsewhere


def test_the_bound_counts_what_aliases_add():
    """A list of 999 is 1000 values: 20 aliases of it add 20,000, and 21 add 21,000. A long file without any is read."""
    text = f"a: &a [{', '.join(['1'] * 999)}]\nb: [{', '.join(['*a'] * 20)}"
    assert len(load(text + "]", "x")["b"]) == 20
    with refuses(ConfigError, "21,000"):
        load(text + ", *a]", "x")
    assert len(load(f"a: [{', '.join(['1'] * (MOST + 1))}]", "x")["a"]) == MOST + 1


@pytest.mark.parametrize("text", ["a: " + "[" * 101 + "]" * 101, "a: " + "[" * 5000 + "]" * 5000])
def test_what_nests_without_end(text):
    with refuses(ConfigError, "deep"):
        load(text, "x")
