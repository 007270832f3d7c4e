"""The figures of `make house`, of a graph drawn by hand and of the code as it is."""

import ast
from collections import Counter

import networkx as nx
import pytest

from benchmarks import goals, house, walk

LAYERS = {"pipeline.cli": 0, "pipeline.run": 1, "workflows": 2, "pipeline.store": 3}
EDGES = [("pipeline.cli", "pipeline.run.a"), ("pipeline.run.a", "pipeline.store.b"),
         ("workflows.x", "pipeline.store.b"), ("pipeline.store.b", "pipeline.store.c")]


def counts(*more: tuple[str, str]) -> dict[str, int]:
    return {name: len(found) for name, found in house.structure(nx.DiGraph([*EDGES, *more]), LAYERS).items()}


def test_rooms_floors_and_arrows_of_a_graph():
    assert counts() == {"rooms": 4, "floors": 3, "arrows between rooms": 3, "upward arrows": 0, "circles of rooms": 0,
                        "circles of files": 0}


@pytest.mark.parametrize(("edge", "changed"), [
    (("pipeline.store.c", "pipeline.store.b"), {"circles of files"}),
    (("pipeline.store.c", "pipeline.run.z"), {"upward arrows", "circles of rooms"}),
    (("pipeline.store.b", "pipeline.run.a"), {"upward arrows", "circles of rooms", "circles of files"})])
def test_what_points_up_or_back_is_beyond_the_limits(edge, changed):
    found = house.structure(nx.DiGraph([*EDGES, edge]), LAYERS)
    assert set(house.beyond(found)) == changed
    assert counts(edge)["floors"] == 3


def test_of_two_rooms_that_are_apart_neither_imports_the_other():
    graph, pair = nx.DiGraph([("workflows.x", "pipeline.check.y")]), ("workflows", "pipeline.check")
    floors = {"workflows": 1, "pipeline.check": 1}
    assert house.structure(graph, floors)["upward arrows"] == []
    assert house.structure(graph, floors, {pair})["upward arrows"] == [("workflows.x", "pipeline.check.y")]
    assert ("ouroboros.workflows", "ouroboros.pipeline.plan") in house.apart()


def test_rooms_are_folders_at_any_depth_and_a_module_has_one_name_by_whichever_path():
    assert [house.layer(f"a.{name}", {"ouroboros": 0, "a": 1, "a.inner": 3}) for name in ("x", "inner.x")] == [1, 3]
    modules = ("ouroboros.commands.cli", "ouroboros.pipeline.store.files", "ouroboros.pipeline.store",
               "ouroboros.stages")
    assert [house.room(m) for m in modules] == ["ouroboros.commands", "ouroboros.pipeline.store",
                                                "ouroboros.pipeline.store", "ouroboros.stages"]
    paths = ("pipeline/store/files.py", "src/ouroboros/pipeline/store/files.py", "src/ouroboros/commands/cli.py")
    assert [house.module(house.HOME / path) for path in paths] == [
        "ouroboros.pipeline.store.files", "ouroboros.pipeline.store.files", "ouroboros.commands.cli"]


def test_the_code_keeps_the_limits():
    """As `make house` does. Lower house.LIMITS with every move; a number that says no is not raised."""
    found = house.measured()
    assert found.keys() == house.LIMITS.keys()
    assert house.beyond(found) == []


def test_a_number_beyond_its_limit_is_named_as_items_are():
    name = "lines of tests"
    assert house.beyond({name: house.LIMITS[name], "rooms": ["pipeline"]}) == []
    assert house.beyond({name: house.LIMITS[name] + 1, "circles of rooms": [["pipeline.store", "stages"]]}) == [
        name, "circles of rooms"]


def test_a_journey_counts_stays_files_climbs_and_returns():
    """run down to store, up to check (1 climb), down to store again (a return), and up to where it began (both)."""
    places = [str(house.HOME / f"src/ouroboros/{name}.py") for name in
              ("commands/run/a", "commands/run/a", "pipeline/store/b", "pipeline/check/c", "pipeline/store/b",
               "commands/run/a")]
    layer_of = {"ouroboros.commands.run": 0, "ouroboros.pipeline.check": 1, "ouroboros.pipeline.store": 2}
    assert walk.count(places, layer_of) == walk.Journey(stays=5, files=3, climbs=2, returns=2)


def test_only_the_table_names_kinds_of_stages():
    """What else has such a word means another thing: a part of a step, a type of recipe, a list of hashes."""
    table = ("pipeline/settings/kinds.py",)
    assert sum(goals.naming(goals.KINDS, table).values()) <= 35
    assert len(goals.naming(goals.KINDS, table)) <= 14


def test_a_frame_that_holds_the_setting_is_counted_with_its_file():
    from ouroboros.pipeline.settings.config import Config

    found: Counter = Counter()
    with walk.watched(found):
        Config.partial({"lr": 0.5})
    assert not found
    with walk.watched(found):
        Config.partial({"lr": walk.RATE})
    assert set(found) == {"pipeline/settings/setting.py"}


def test_a_test_that_cannot_fail_and_a_file_without_tests_are_found():
    helper = "def close(a):\n    assert a\ndef near(a):\n    close(a)\n"
    sources = {
        "tests/test_empty.py": "", "tests/factories.py": helper,
        "tests/test_some.py": "def test_idle():\n    print(1)\ndef test_near():\n    near(1)\n"
                              "def test_raises():\n    with pytest.raises(ValueError):\n        int('x')\n"
                              "def test_sum():\n    assert math.exp(1) < 3\n"
                              "class TestX:\n    async def test_waits(self):\n        await near_by(1)\n"}
    assert house.idle_tests(sources) == ["tests/test_empty.py", *(
        f"tests/test_some.py:test_{name}" for name in ("idle", "sum", "waits"))]


def test_every_test_of_ours_can_fail():
    paths = house.tracked("tests/*.py")
    assert house.idle_tests({path: (house.HOME / path).read_text(encoding="utf-8") for path in paths}) == []


@pytest.mark.parametrize(("meaning", "stands_alone"), [
    ("of the jobs; null: the cluster's default", False), ("null: model.temperature", False),
    ("both: explorer and trainer side by side", False), ("added to the denominator", False),
    ("partition of the jobs; null: the cluster's default", True), ("nucleus sampling bound, 1 = off", True),
    ("ZeRO-Offload: optimizer states in host memory", True)])
def test_a_meaning_that_has_no_subject_of_its_own_is_found(meaning, stands_alone):
    assert (goals.FRAGMENT.match(meaning) is None) == stands_alone


def test_every_meaning_of_a_setting_stands_alone():
    assert goals.fragments() == []


def test_places_of_facts_are_counted_in_the_sources(monkeypatch):
    sources = {"stages/a.py": "KIND = 'rft'\nif stage.over_rollout or kind in ('rft', 'bench'):\n    pass\n",
               "pipeline/check/b.py": "def problems(): return ('grpo', 'opmd')\nclass E:\n    over_rollout: int = 1\n",
               "pipeline/settings/arguments/c.py": "TWO = ('grpo', 'opmd')\n"}
    asserts = {"tests/t.py": "assert str(e) == 'a text of words'\npytest.raises(E, match='two')\nassert x == 'y'"}
    monkeypatch.setattr(goals, "trees", lambda *folders: {
        path: ast.parse(text) for path, text in (asserts if folders == ("tests",) else sources).items()})
    assert goals.naming(goals.KINDS) == {"stages/a.py": 3}
    assert goals.naming(goals.KINDS, ("stages/a",)) == {}
    assert goals.naming(("over_rollout",)) == {"stages/a.py": 1, "pipeline/check/b.py": 1}
    assert goals.rules() == {"pipeline/check/b.py": 1}
    assert goals.name_lists() == ["pipeline/check/b.py:1"]
    assert goals.wordings() == 2
