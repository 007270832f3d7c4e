"""Hydra's multirun words as points: which there are, what they are called, what is refused."""

import pytest

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.compose import axes
from ouroboros.pipeline.store.errors import ConfigError
from tests.configs import problems_of


def points(*words: str) -> list[list[str]]:
    return [overrides for overrides, _ in axes.points(axes.read(list(words)))]


def bad(*words: str) -> list[str]:
    """The keys of the problems of axes."""
    with pytest.raises(ConfigError) as caught:
        axes.read(list(words))
    return [problem.key for problem in caught.value.problems]


def test_every_combination_the_last_axis_turning_fastest():
    assert points("name=x", "a.lr=1e-6,3e-6", "seed=1,2") == [
        ["name=x", "a.lr=1e-06", "seed=1"], ["name=x", "a.lr=1e-06", "seed=2"],
        ["name=x", "a.lr=3e-06", "seed=1"], ["name=x", "a.lr=3e-06", "seed=2"]]


@pytest.mark.parametrize(("word", "values"), [
    ("a=choice(x,y)", ["x", "y"]), ("a=range(1,5)", ["1", "2", "3", "4"]), ("a=range(5,1,step=-2)", ["5", "3"]),
    ("a=range(0,1,step=0.25)", ["0.0", "0.25", "0.5", "0.75"]), ("a=sort(3,1,2)", ["1", "2", "3"]),
    ("a=[1,2],[3]", ["[1,2]", "[3]"]), ("a='x,y',z", ["'x,y'", "z"]), ("recipe=glob(countd*n)", ["countdown"])])
def test_the_ways_in_which_hydra_writes_several_values(word, values):
    key = word.split("=")[0]
    assert points(word) == [[f"{key}={value}"] for value in values]
    assert axes.count(axes.read([word])) == len(values)


def test_a_setting_of_one_stage_and_an_added_argument_can_be_swept():
    assert points("stages.rft.algorithm.optimizer.lr=1,2") == [
        ["stages.rft.algorithm.optimizer.lr=1"], ["stages.rft.algorithm.optimizer.lr=2"]]
    assert points("+algorithm.policy_loss_fn_args.x=1,2")[1] == ["+algorithm.policy_loss_fn_args.x=2"]


def test_what_hydra_cannot_read_stays_for_the_composition_to_explain():
    assert points("a=(", "seed=1,2") == [["a=(", "seed=1"], ["a=(", "seed=2"]]


@pytest.mark.timeout(5)
def test_a_billion_points_are_counted_without_listing_them():
    assert axes.count(axes.read(["a=range(0,1000000000)", "seed=1,2"])) == 2_000_000_000
    assert axes.count(axes.read(["a=range(0,1000000000,step=0.5)"])) == 2_000_000_000


@pytest.mark.parametrize("word", [
    "lr=interval(0,1)", "lr=shuffle(1,2)", "lr=shuffle(range(1,3))", "name=a,b", "checkpoint_root_dir=a,b", "seed=1,1",
    "seed=1,'1'", "seed=range(5,1)", "seed=range(1,5,step=0)", "recipe=glob(x*)"])
def test_an_invalid_axis_is_refused_beside_a_valid_one(word):
    assert bad(word, "cluster.node_num=1,2") == [f"'{word}'"]


@pytest.mark.parametrize("words", [["seed=1,2", "seed=3,4"], ["seed=3", "seed=1,2"], ["seed=1,2", "seed=1,2"]])
def test_two_axes_of_one_key_are_one_problem(words):
    assert bad(*words) == [f"'{words[0]}' and '{words[1]}'"]


def test_all_bad_axes_come_at_once():
    assert bad("a=interval(0,1)", "name=a,b", "seed=1,2") == ["'a=interval(0,1)'", "'name=a,b'"]


@pytest.mark.parametrize("word", ["seed=1,2", "recipe=glob(*)", "stages.rft.seed=1,2", "seed=range(1,3)",
                                  "algorithm=grpo,ppo"])
def test_several_values_where_one_is_needed_are_answered_with_the_option(word):
    (problem,) = problems_of("name=x", word)
    assert (problem.key, "ouro run -m" in problem.do) == (f"'{word}'", True)


@pytest.mark.parametrize(("differs", "name"), [
    ({}, "base"),
    ({"algorithm.optimizer.lr": "1e-6", "seed": "2"}, "base-lr=1e-6,seed=2"),
    ({"stages.rft.algorithm.optimizer.lr": "1e-6"}, "base-rft.lr=1e-6"),
    ({"stages.sft.seed": "1", "seed": "2"}, "base-sft.seed=1,seed=2"),
    ({"a.x.lr": "1", "b.x.lr": "2"}, "base-a.x.lr=1,b.x.lr=2"),  # `lr` and `x.lr` would say the same of both
    ({"recipe": "countdown"}, "base-recipe=countdown")])
def test_a_point_is_called_after_the_shortest_ends_that_tell_its_keys_apart(differs, name):
    assert axes.name_of("base", differs) == name


def test_names_are_stable_however_the_number_is_typed():
    names = {axes.name_of("b", differs) for _, differs in axes.points(axes.read(["lr=1e-06,3e-6"]))}
    assert names == {"b-lr=1e-6", "b-lr=3e-6"} == {
        axes.name_of("b", differs) for _, differs in axes.points(axes.read(["lr=0.000001,3.0e-6"]))}


@pytest.mark.parametrize(("one", "other"), [
    ({"path": "a/b"}, {"path": "a b"}), ({"x": "[1,2]"}, {"x": "(1,2)"}), ({"x": "y" * 80}, {"x": "y" * 81})])
def test_names_are_safe_in_a_path_short_and_differ_where_the_values_do(one, other):
    names = [axes.name_of("base", differs) for differs in (one, other)]
    assert names[0] != names[1]
    for name in names:
        assert len(name) <= 60
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.,=+-")
        assert name.startswith("base-")


def test_a_search_gives_every_point_its_own_words():
    assert axes.given(["name=x", "seed=2", "algorithm.optimizer.lr=1e-05", "checkpoint_root_dir=/tmp"]) == {
        "seed": "2", "algorithm.optimizer.lr": "1e-5"}


@pytest.mark.parametrize("text", ["a'b", "a\\b", "a\\'b", "a\\", "(a [b = # ~ , ä", "1e5", "null", ""])
def test_a_word_sets_a_key_to_any_text(text):
    assert axes.parsed(axes.word_of("checkpoint_root_dir", text)).value() == text


def test_a_recipe_may_be_in_a_directory_of_any_name(tmp_path):
    directory = tmp_path / "it's (a [b, ä"
    directory.mkdir()
    (directory / "one.yaml").write_text("seed: 5\n")
    assert compose([axes.word_of("recipe", directory / "one.yaml")]).seed == 5
