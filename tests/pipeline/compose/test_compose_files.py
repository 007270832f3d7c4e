"""Recipes and groups of the user's own, and the problems of broken ones."""

import pytest

from ouroboros.pipeline.check.judge import compose
from tests.configs import broken, problems_of, refused


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A directory of the user's with a conf/ of its own, as the current one."""
    monkeypatch.chdir(tmp_path)
    for group in ("recipe", "trainer"):
        (tmp_path / "conf" / group).mkdir(parents=True)
    return tmp_path


RECIPE = "# @package _global_\nname: mine\nmodel: {init: {enable: true}}\nbuffer: {batch_size: 3}\n"


def test_recipes_and_groups_of_the_users_own_are_found_below_the_current_directory(project):
    (project / "conf/recipe/mine.yaml").write_text(RECIPE)
    (project / "conf/trainer/small.yaml").write_text("max_token_len_per_gpu: 4000\n")
    config = compose(["recipe=mine", "trainer=small"])
    assert (config.name, config.buffer.batch_size, config.trainer.max_token_len_per_gpu) == ("mine", 3, 4000)
    for override, words in (("recipe=mien", "'mine'?"), ("trainer=smal", "'small'?")):
        (problem,) = problems_of(override)
        assert f"{problem.key}={problem.found}" == override
        assert words in problem
    assert broken("recipe=mine", "stages.rft.seed=3") == ["'stages.rft.seed=3'"]  # the recipe has no `stages`


def test_a_choice_of_a_group_wins_over_the_recipe_and_an_override_over_both(project):
    (project / "conf/recipe/mine.yaml").write_text(RECIPE + "trainer: {grad_clip: 3, max_token_len_per_gpu: 5000}\n")
    (project / "conf/trainer/small.yaml").write_text("max_token_len_per_gpu: 4000\ngrad_clip: 2\n")
    trainer = compose(["recipe=mine", "trainer=small", "trainer.grad_clip=1"]).trainer
    assert (trainer.max_token_len_per_gpu, trainer.grad_clip) == (4000, 1.0)


def test_a_recipe_with_the_name_of_a_shipped_one_is_refused(project):
    (project / "conf/recipe/countdown.yaml").write_text(RECIPE)
    assert str(project / "conf/recipe/countdown.yaml") in refused()


@pytest.mark.parametrize("header", [
    "#@Package  _GLOBAL_", "#\t@package\t_global_", "\ufeff# @package: _global_\r", "# mine\n\n# @package _global_",
    "", "# @package", "## @ package '_global_'", "# @package _global_  # all", "---\n# @package _global_",
    "# of all\nseed: 1\n# @package is what Hydra reads"])
def test_a_recipe_is_one_without_package_and_with_any_spelling_of_it(project, header):
    """Without it Hydra would lay the file below a key `recipe`."""
    (project / "conf/recipe/mine.yaml").write_text(f"{header}\n{RECIPE.partition(chr(10))[2]}")
    (project / "conf/recipe/other.yaml").write_text("defaults: [mine, _self_]\nname: other\n")
    for name in ("mine", "other", "conf/recipe/mine.yaml"):
        assert compose([f"recipe={name}"]).buffer.batch_size == 3


@pytest.mark.parametrize("package", ["_group_", "recipe", "algorithm", "_global_.algorithm"])
def test_a_recipe_of_another_package_is_refused(project, package):
    (project / "conf/recipe/mine.yaml").write_text(f"#@Package {package}\nname: x\n")
    (project / "conf/recipe/other.yaml").write_text("defaults: [mine, _self_]\nname: other\n")
    for name in ("mine", "other", "conf/recipe/mine.yaml"):
        assert f"conf/recipe/mine.yaml has `@package {package}`" in refused(f"recipe={name}")


@pytest.mark.parametrize(("name", "text", "program"), [
    ("a.yml", "base_model: x\nseed: 1\nlora_r: 8\n", "axolotl"), ("a.yaml", "model_name_or_path: x\n", "TRL"),
    ("a.yaml", "seq_len: 1\nmodel: {name: x}\n", "prime-rl"), ("a.toml", "seq_len = 1\n", "prime-rl")])
def test_a_file_of_another_program_is_named_and_one_key_of_it_is_unknown(project, name, text, program):
    (project / name).write_text(text)
    assert f"{name} is a file of {program}" in refused(f"recipe={name}")
    (project / "conf/recipe/mine.yaml").write_text(f"{RECIPE}base_model: x\n")
    assert broken("recipe=mine") == ["base_model"]


@pytest.mark.parametrize(("given", "words"), [
    ("countdwn", "names 'countdwn', and there is no recipe of that name. Did you mean 'countdown'? Known: countdown,"),
    ("{trainer: tny}", "names 'tny', and there is no recipe/trainer of that name. Did you mean 'tiny'?")])
def test_an_unknown_default_of_a_file_is_named_with_the_file_and_what_there_is(project, given, words):
    (project / "conf/trainer/tiny.yaml").write_text("grad_clip: 2\n")
    (project / "conf/recipe/mine.yaml").write_text(f"# @package _global_\ndefaults: [{given}, _self_]\nname: mine\n")
    assert f"`defaults` of {project}/conf/recipe/mine.yaml {words}" in refused("recipe=mine")
    (project / "conf/recipe/other.yaml").write_text(f"defaults: [{given}]\nname: x\n")
    assert "conf/recipe/other.yaml names" in refused("recipe=conf/recipe/other.yaml")


def test_a_recipe_can_be_a_file_anywhere(project):
    (project / "x").mkdir()
    (project / "x" / "my own.yaml").write_text(RECIPE)
    assert compose(["recipe='x/my own.yaml'"]).name == "mine"
    assert "recipe=x/no.yaml: " in refused("recipe=x/no.yaml")


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize(("content", "line"), [
    (b"name: [1, 2\nseed: 3\n", 2), (b"name: x\n  seed: 2\n", 2), (b"- a\n- b\n", None), (b"", None),
    (b"\xff\xfe\x00", None), (b"model: {model_path: ${x}}\n", 1)])
def test_a_file_that_cannot_be_read_is_named_and_hides_no_mistake_on_the_command_line(project, content, line, by_name):
    path = project / ("conf/recipe/bad.yaml" if by_name else "bad.yaml")
    path.write_bytes(content)
    unreadable, other = problems_of("recipe=bad" if by_name else "recipe=bad.yaml", "foo=2")
    assert unreadable.startswith(f"{path} " if by_name else "recipe=bad.yaml ")
    assert line is None or f"line {line}, column" in unreadable
    assert ("in quotes" in unreadable) == (b"$" in content)
    assert other.key == "foo"


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize(("text", "key", "line"), [
    ("stages: {a: 1}", "stages", None), ("buffer: oops", "buffer", None), ("buffer: [1]", "buffer", None),
    ("buffer: {explorer_input: {eval_tasksets: {a: 1}}}", "buffer.explorer_input.eval_tasksets", None),
    ("nmae: x", "nmae", None), ("name: a\nname: b", "name", 3), ('name: "${project"', "name", 2),
    ("name: ${oc.env:HOME", "name", 2)])
def test_a_mistake_in_a_file_hides_no_other_problem(project, text, key, line, by_name):
    path = project / ("conf/recipe/mine.yaml" if by_name else "mine.yaml")
    path.write_text(f"# @package _global_\n{text}\nseed: -3\nfoo: 2\n")
    found = problems_of("recipe=mine" if by_name else "recipe=mine.yaml", "trainer.zero_stage=7")
    assert sorted(one.key for one in found) == sorted([key, "seed", "foo", "trainer.zero_stage"])
    (place,) = ((one.file, one.line) for one in found if one.key == key)
    assert place == ((str(path) if by_name else "mine.yaml", line) if line else (None, None))


def test_of_two_recipes_neither_is_judged(project):
    assert broken("recipe=countdown", "recipe=gsm8k", "foo=1") == ["'recipe=countdown' and 'recipe=gsm8k'", "foo"]
