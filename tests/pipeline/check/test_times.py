"""Expected times by hand, from the steps of an earlier stage."""

from types import SimpleNamespace

import pytest

from ouroboros.pipeline.check import times
from ouroboros.pipeline.store import files
from tests.damage import flip
from tests.fake_run import FakeRun
from tests.pipeline.check.test_workload import stage


@pytest.fixture
def planned(tmp_path):
    """A stage rft of a run whose earlier one, in the same store, has 4 steps of 8 rows, 9,000 tokens and 0.45 s."""
    made = FakeRun(tmp_path).whole()
    inputs = next(one["inputs"] for one in made.stages if one["name"] == "rft")
    return SimpleNamespace(name="rft", kind="rft", root=str(tmp_path), inputs=inputs,
                           directory=tmp_path / "store/rft-1")


def test_a_row_takes_what_it_took_before(planned):
    """50 steps of 512 rows are 25,600: 3,200 times 8."""
    config = stage("rft", buffer__total_steps=50)
    found = times.expected(planned, config)
    assert (found.seconds, found.tokens) == (pytest.approx(1440.0), pytest.approx(28_800_000))
    assert found.source.startswith("rft-")
    assert len(times.described(config, found)) == len(times.described(config, None)) == 1


@pytest.mark.parametrize("other", [{"kind": "offline"}, {"inputs": {"model": "/another/model"}}])
def test_another_kind_or_model_says_nothing(planned, other):
    assert times.expected(SimpleNamespace(**vars(planned) | other), stage("rft")) is None


def test_of_a_damaged_stage_nothing_is_expected_and_nothing_stops(planned, tmp_path):
    for path in tmp_path.glob("store/rft-*/steps/*.parquet"):
        flip(path)
    assert times.expected(planned, stage("rft")) is None


def test_what_it_took_is_compared(planned):
    found = times.expected(planned, stage("rft"))
    assert list(times.compared([(planned, "", found)])) == []
    files.write_json(planned.directory / files.MANIFEST, {"seconds": 90.0})
    assert len(list(times.compared([(planned, "", found), (planned, "", None)]))) == 1
