"""Operators on experience, called once before a run with made attempts: what a step would end with is found."""

import pytest

from ouroboros.pipeline.store import files
from ouroboros.stages.own_code import curate

MINE = "tests.stages.test_called_code"


def bare():
    pass


def brief(rows):
    for row in rows:
        row["scores"]["brief"] = 1 / (1 + len(row["response"]))


def nothing(rows):
    for row in rows:
        row["scores"]["nothing"] = 0


def sees(rows):
    assert rows[0]["image"]


def drops(rows):
    for row in rows:
        row["reason"] = "not wanted"


def shaping(key, how="ADD"):
    return {"name": "reward_shaping_mapper", "args": {"reward_shaping_configs": [{"stats_key": key, "op_type": how}]}}


def mine(name):
    return {"name": f"{MINE}:{name}"}


@pytest.fixture
def called(tmp_path):
    """called(operators, components): where the answer belongs, and its sentence. components: None where unknown."""
    def call(operators, components):
        curate({"operators": operators, "components": components}, str(tmp_path / "answer.json"))
        return files.read_json(tmp_path / "answer.json", kind=list)

    return call


@pytest.mark.parametrize(("operators", "components", "names"), [
    ([mine("bare")], ["accuracy"], "bare"), ([mine("sees")], ["accuracy"], "KeyError: 'image'"),
    ([shaping("brief"), mine("brief")], ["accuracy"], "stats_key=brief"),
    ([shaping("brief"), mine("brief")], None, "stats_key=brief"), ([shaping("brief")], ["accuracy"], "stats_key=brief"),
    ([{"name": "quality_reward"}], None, "quality_reward"),
    ([mine("nothing"), shaping("nothing", "DIV")], None, "nothing is 0"),
    ([mine("drops"), shaping("late")], ["accuracy"], "stats_key=late"), ([mine("absent")], None, "absent")])
def test_operators_that_would_end_a_step_are_found(called, operators, components, names):
    where, words = called(operators, components)
    assert where == "problems"
    assert names in words


@pytest.mark.parametrize(("operators", "components"), [
    ([mine("brief"), shaping("brief")], ["accuracy"]), ([shaping("style")], None), ([shaping("style")], ["style"]),
    ([mine("drops"), mine("brief"), shaping("brief", "DIV")], None),
    ([{"name": "reward_std_filter"}, {"name": "diversity_reward"}, shaping("diversity")], ["accuracy"])])
def test_operators_that_go_through_are_a_fact(called, operators, components):
    """What rewards add up may be known to the reward function alone."""
    assert called(operators, components)[0] == "facts"
