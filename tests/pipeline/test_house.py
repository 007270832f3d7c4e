"""The figures of `make house`, of a graph drawn by hand and of the code as it is."""

import tomllib
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


def test_the_code_keeps_the_limits_but_for_imports_that_the_contract_excuses():
    contract = tomllib.loads((house.HOME / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    excused = sorted(tuple(line.split(" -> ")) for line in contract.get("ignore_imports", ()))
    files = house.import_graph()
    assert house.structure(files, house.layers())["upward arrows"] == excused
    files.remove_edges_from(excused)
    assert house.beyond(house.structure(files, house.layers())) == []


def test_only_modules_directly_in_pipeline_are_the_command_line():
    modules = ("pipeline.cli", "pipeline.store.files", "pipeline.store", "stages.learner.actor")
    assert [house.room(m) for m in modules] == ["pipeline", "pipeline.store", "pipeline.store", "stages"]


def test_a_frame_that_holds_the_setting_is_counted_with_its_file():
    from pipeline.settings.config import Config

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
                              "class TestX:\n    async def test_waits(self):\n        await near_by(1)\n"}
    assert house.idle_tests(sources) == ["tests/test_empty.py", "tests/test_some.py:test_idle",
                                         "tests/test_some.py:test_waits"]


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
