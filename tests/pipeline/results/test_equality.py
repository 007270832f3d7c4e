"""Stages with rows of several makers: read as one, and compared without them."""

import pytest

from benchmarks import equality
from ouroboros.pipeline.results import findings
from ouroboros.pipeline.store import files, records, tables
from tests.factories import row


@pytest.fixture
def stage(tmp_path):
    """stage(name, makers, loss): a finished one with a step of each maker, and one of its rows."""

    def make(name, makers, loss=1.0, weights="a"):
        place = tmp_path / name
        for step, maker in enumerate(makers, 1):
            tables.write(tables.step_file(place, "steps", step), records.Step, [
                row(records.Step, stage=maker, step=step, loss=loss * step, seconds=float(len(maker)))])
            tables.write(tables.step_file(place, "trained", step), records.Trained, [
                row(records.Trained, experience_id=f"{maker}/{step}/0/0", train_step=step)])
        files.write_json(place / files.MANIFEST, {"weights_hash": weights})
        return place

    return make


def test_names_of_makers_and_times_are_no_difference(stage):
    taken, alone = stage("rft-bb", ["rft-aa", "rft-aa", "rft-bb"]), stage("rft-cc", ["rft-cc"] * 3)
    assert list(equality.differences(taken, alone)) == []


def test_values_rows_and_weights_are(stage):
    one, other = stage("rft-aa", ["rft-aa"] * 2), stage("rft-bb", ["rft-bb"] * 2, loss=2.0, weights="b")
    found = list(equality.differences(one, other))
    assert [line.partition(":")[0] for line in found] == ["weights", "steps"]
    assert "loss" in found[1]
    assert "steps: 2 rows and 1" in equality.differences(one, stage("rft-cc", ["rft-cc"]))


def test_a_stage_is_read_with_the_rows_that_it_took(stage):
    taken = stage("rft-bb", ["rft-aa", "rft-aa", "rft-bb"])
    session = tables.connect([("run", taken)])
    assert findings.step_columns(session, taken.name)["step"].tolist() == [1.0, 2.0, 3.0]
