"""Recipes and groups of the user's own, and what a broken one is answered with."""

import pytest

from pipeline.check.judge import compose
from tests.configs import refused


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
    assert (config["name"], config["buffer"]["batch_size"], config["trainer"]["max_token_len_per_gpu"]) == (
        "mine", 3, 4000)
    assert "Known: countdown, gsm8k, mine" in refused("recipe=mien")
    assert "unknown trainer 'smal'. Did you mean 'small'?" in refused("trainer=smal")


def test_a_choice_of_a_group_wins_over_the_recipe_and_an_override_over_both(project):
    (project / "conf/recipe/mine.yaml").write_text(RECIPE + "trainer: {grad_clip: 3, max_token_len_per_gpu: 5000}\n")
    (project / "conf/trainer/small.yaml").write_text("max_token_len_per_gpu: 4000\ngrad_clip: 2\n")
    trainer = compose(["recipe=mine", "trainer=small", "trainer.grad_clip=1"])["trainer"]
    assert (trainer["max_token_len_per_gpu"], trainer["grad_clip"]) == (4000, 1.0)


def test_a_recipe_of_the_users_does_not_hide_behind_one_of_ours(project):
    (project / "conf/recipe/countdown.yaml").write_text(RECIPE)
    assert "countdown.yaml has the name of one of ours" in refused()


def test_a_recipe_is_one_whether_it_says_so_or_not(project):
    """Without `@package _global_` Hydra would lay it below a key `recipe`."""
    (project / "conf/recipe/mine.yaml").write_text(RECIPE.partition("\n")[2])
    assert compose(["recipe=mine"])["buffer"]["batch_size"] == 3
    (project / "conf/recipe/mine.yaml").write_text("")
    assert "mine.yaml holds no settings" in refused("recipe=mine")


@pytest.mark.parametrize(("given", "words"), [
    ("countdwn", "names 'countdwn', and there is no recipe of that name. Did you mean 'countdown'? Known: countdown,"),
    ("{trainer: tny}", "names 'tny', and there is no recipe/trainer of that name. Did you mean 'tiny'?")])
def test_what_a_file_takes_for_granted_and_is_not_there_is_told_with_what_is(project, given, words):
    (project / "conf/trainer/tiny.yaml").write_text("grad_clip: 2\n")
    (project / "conf/recipe/mine.yaml").write_text(f"# @package _global_\ndefaults: [{given}, _self_]\nname: mine\n")
    assert words in refused("recipe=mine")


def test_a_recipe_can_be_a_file_anywhere(project):
    (project / "x").mkdir()
    (project / "x" / "my own.yaml").write_text(RECIPE)
    assert compose(["recipe='x/my own.yaml'"])["name"] == "mine"
    assert "recipe=x/no.yaml: there is no such file" in refused("recipe=x/no.yaml")


@pytest.mark.parametrize(("text", "words"), [
    ("name: [1, 2\nseed: 3\n", "line 2, column"),
    ("seed: 1\nname: a\nseed: 2\n", "line 3: the key 'seed' is there again"),
    ("name: x\n  seed: 2\n", "line 2, column"), ("- a\n- b\n", "holds no settings"), ("", "holds no settings"),
    ("nmae: x\n", "unknown key 'nmae'. Did you mean 'name'?"), ("buffer: 3\n", "key 'buffer': needed a mapping"),
])
def test_a_broken_recipe_names_the_file_or_the_key(project, text, words):
    (project / "bad.yaml").write_text(text)
    assert words in refused("recipe=bad.yaml")
    if text:  # a recipe of conf/ may be empty
        (project / "conf/recipe/bad.yaml").write_text("# @package _global_\n" + text)
        message = refused("recipe=bad")
        assert "bad.yaml" in message or "recipe/bad" in message or words in message


@pytest.mark.parametrize(("text", "words"), [
    ("stages: {a: 1}", "key 'stages': needed a list, found a mapping"),
    ("buffer: oops", "key 'buffer': needed a mapping of settings, found the text 'oops'. A file of conf/buffer/ is"),
    ("buffer: [1]", "key 'buffer': needed a mapping, found a list"),
    ("buffer: {explorer_input: {eval_tasksets: {a: 1}}}", "explorer_input.eval_tasksets': needed a list, found a map"),
])
@pytest.mark.parametrize("by_name", [True, False])
def test_a_list_where_a_section_stands_hides_no_other_problem(project, text, words, by_name):
    path = project / ("conf/recipe/mine.yaml" if by_name else "mine.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"# @package _global_\n{text}\nseed: -3\nfoo: 2\n")
    message = refused("recipe=mine" if by_name else "recipe=mine.yaml", "trainer.zero_stage=7")
    for line in (words, "seed=-3: needed at least 0", "unknown key 'foo'", "trainer.zero_stage=7: needed one of"):
        assert message.count(line) == 1


def test_a_recipe_that_cannot_be_read_hides_no_mistake_on_the_command_line(project):
    (project / "mine.yaml").write_text("model: {model_path: ${x}}\n")
    message = refused("recipe=mine.yaml", "foo=2")
    assert "recipe=mine.yaml is no YAML" in message
    assert 'goes in quotes: "${...}".' in message
    assert "unknown key 'foo'" in message


def test_an_interpolation_without_its_end_is_told_with_file_and_line(project):
    (project / "conf" / "recipe").mkdir(parents=True, exist_ok=True)
    (project / "conf" / "recipe" / "mine.yaml").write_text("# @package _global_\nseed: 3\nname: \"${project\"\n")
    assert "conf/recipe/mine.yaml, line 3: key 'name': '${' without its '}'" in refused("recipe=mine")


def test_the_file_is_named_whose_defaults_name_nothing(project):
    (project / "conf/recipe/mine.yaml").write_text("defaults: [nope]\nname: x\n")
    assert "`defaults` of conf/recipe/mine.yaml names 'nope'" in refused("recipe=conf/recipe/mine.yaml")
    (project / "conf/recipe/mine.yaml").write_text("# @package _global_\ndefaults: [nope]\nname: x\n")
    assert f"`defaults` of {project}/conf/recipe/mine.yaml names 'nope'" in refused("recipe=mine")


def test_of_two_recipes_nothing_is_said_of_either(project):
    assert refused("recipe=countdown", "recipe=gsm8k", "foo=1").splitlines()[1:] == [
        "  unknown key 'foo'.",
        "  'recipe=countdown' and 'recipe=gsm8k' set the same key; leave one of them out."]


def test_a_stage_of_a_recipe_without_stages_is_set_for_the_run(project):
    (project / "conf/recipe/mine.yaml").write_text(RECIPE)
    assert "this recipe has no `stages`: its one stage is what the settings of the run say. Write seed=3." in refused(
        "recipe=mine", "stages.rft.seed=3")
