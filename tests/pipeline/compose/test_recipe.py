"""A recipe, resolved: which kind of stage each mode makes, and what comes before it."""

import pytest

from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.settings.config import Config
from tests.configs import changed

SFT = {"algorithm": {"algorithm_type": "sft"}}


def recipe(*stages: dict, **values) -> Recipe:
    return Recipe(changed({"stages": list(stages), **values}))


@pytest.mark.parametrize(("mode", "algorithm", "kind"), [
    ("both", "grpo", "rft"), ("colocate", "grpo", "rft"), ("explore", "grpo", "rollout"), ("train", "grpo", "offline"),
    ("bench", "grpo", "bench"), ("both", "sft", "train"),
    ("train", "dpo", "train"), ("train", "sft", "train"), ("bench", "sft", "bench")])
def test_the_kind_of_a_stage_is_what_its_mode_makes_of_its_algorithm(mode, algorithm, kind):
    assert Config.partial({"mode": mode, "algorithm": {"algorithm_type": algorithm}}).kind == kind


def test_an_offline_stage_trains_on_what_the_nearest_stage_before_it_explored():
    """a - sft - b - offline, and beside them far: `after` decides who stands before whom, not the place in the list."""
    line = recipe(
        {"stage_name": "a", "mode": "explore"}, {"stage_name": "sft", **SFT}, {"stage_name": "b", "mode": "explore"},
        {"stage_name": "offline", "mode": "train"}, {"stage_name": "other", "mode": "train", "after": ["sft"]},
        {"stage_name": "none", "mode": "train", "after": []})
    assert line.explored["offline"] == "b"
    assert line.explored["other"] == "a"
    assert line.explored["none"] is None
    assert line.ancestors["offline"] == ["b", "sft", "a"]


def test_what_is_evaluated_is_what_was_trained_before_in_the_order_of_the_recipe():
    line = recipe(
        {"stage_name": "sft", **SFT}, {"stage_name": "x", "mode": "explore"}, {"stage_name": "low", "after": "sft"},
        {"stage_name": "high", "after": "sft"}, {"stage_name": "all", "mode": "bench", "after": ["high", "low", "x"]},
        {"stage_name": "one", "mode": "bench", "after": "low"})
    assert line.trained("all") == ["sft", "low", "high"]
    assert line.trained("one") == ["sft", "low"]


def test_a_stage_begins_with_the_nearest_model_that_was_trained():
    """look (explores) hangs below old: of look's and sft's line the nearest that trains is sft; alone it is old."""
    look = {"stage_name": "look", "mode": "explore", "after": "old"}
    line = recipe(
        {"stage_name": "old", **SFT}, {"stage_name": "sft", "after": [], **SFT}, look,
        {"stage_name": "near", "after": ["look", "sft"]}, {"stage_name": "far", "after": "look"},
        {"stage_name": "seen", "mode": "explore", "after": []}, {"stage_name": "blind", "after": "seen"},
        {"stage_name": "own", "after": "near", "model": {"model_path": "x"}})
    begun = {name: line.begins_with[name] for name in line.kinds}
    assert begun == {"old": None, "sft": None, "look": "old", "near": "sft", "far": "old", "seen": None,
                     "blind": "seen", "own": None}


def test_what_after_names_and_is_not_there_stands_before_nobody():
    line = recipe({"stage_name": "a", "after": ["b"], **SFT}, {"stage_name": "b", "after": {"a": 1}})
    assert line.parents == {"a": [], "b": []}
    assert line.begins_with["a"] is None


def test_a_run_in_mode_bench_is_its_recipe_with_a_bench_behind_it():
    line = recipe({"stage_name": "sft", **SFT}, {"stage_name": "rft"}, mode="bench")
    assert line.kinds == {"sft": "train", "rft": "rft", "bench": "bench"}
    assert line.trained("bench") == ["sft", "rft"]
    assert line.settings["sft"].mode == "both"


@pytest.mark.parametrize("line", [
    recipe({"stage_name": "bench"}, mode="bench"), recipe({"stage_name": "x"}, {"stage_name": "x"}),
    recipe({"stage_name": "x"}, {"stage_name": "y"}, {"stage_name": "x"})])
def test_where_two_stages_have_one_name_none_stands_before_itself(line):
    """The name of the first and that of the last are the same: the one that a mode adds, or one given twice."""
    first = line.run.stages[0]["stage_name"]
    assert (line.ancestors[first], line.begins_with[first]) == ([], None)
    assert len(line.models) == len(line.kinds)


def test_many_ways_to_a_stage_are_one():
    """30 layers of two, each after both above it: 2 ^ 30 ways lead to the first, and 60 stages stand before the last.
    The nearest of them, both of layer 29, come first."""
    layers = [{"stage_name": f"{side}{layer}", "after": [f"{s}{layer - 1}" for s in "ab"] if layer else []}
              for layer in range(30) for side in "ab"]
    found = recipe(*layers, {"stage_name": "last", "after": ["a29", "b29"]}).ancestors["last"]
    assert (len(found), found[:4]) == (60, ["a29", "b29", "a28", "b28"])
