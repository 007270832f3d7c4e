"""Rows that do not belong together keep a stage from being complete, and resuming makes missing steps again."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ouroboros.commands import cli
from ouroboros.commands.run import outcome
from ouroboros.pipeline.job.context import run_stage
from ouroboros.pipeline.results import learnt, view
from ouroboros.pipeline.settings.kinds import KINDS
from ouroboros.pipeline.store import consistency, files, hashes, records, recovery, tables
from ouroboros.pipeline.store.errors import DataError, StageError
from tests.damage import flip
from tests.factories import row
from tests.fake_run import FakeRun
from tests.golden.messages import refuses, wording


@pytest.fixture
def rft(tmp_path):
    """A stage with four steps of explorer and trainer, and its inputs."""
    run = FakeRun(tmp_path).whole()
    found = next(one for one in run.stages if one["kind"] == "rft")
    return Path(found["directory"]), {role: Path(place) for role, place in found["inputs"].items()}


def damaged(rft):
    """The path of a table whose footer is damaged: what DuckDB says of it names no file."""
    path = tables.step_file(rft[0], "experience", 1)
    content = bytearray(path.read_bytes())
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    content[begin : begin + 8] = b"\xff" * 8
    path.write_bytes(content)
    return path


def problems(rft, **made):
    return list(consistency.inconsistencies(rft[0], KINDS["rft"].writes, rft[1], made))


def test_rows_as_they_were_written_belong_together(rft):
    assert problems(rft, steps=4) == []


@pytest.mark.parametrize(("made", "removed", "found"), [
    (5, None, "1 optimizer steps missing before the last one: 5"),
    (4, 2, "1 optimizer steps missing before the last one: 2"),
    (4, 4, "1 optimizer steps missing before the last one: 4"), (3, None, "optimizer steps after the last one, 3: 4")])
def test_all_steps_up_to_the_last_one_must_be_there(rft, made, removed, found):
    if removed:
        tables.step_file(rft[0], "steps", removed).unlink()
    assert found in problems(rft, steps=made)


def test_a_step_has_one_row_and_trained_rows_are_as_many_as_recorded(rft):
    path = tables.step_file(rft[0], "steps", 2)
    (made,) = tables.read(path, records.Step).to_pylist()
    tables.write(path, records.Step, 2 * [row(records.Step, **made)])
    wording(problems(rft, steps=4), "1 optimizer")
    tables.write(path, records.Step, [row(records.Step, **made)])
    tables.write(tables.step_file(rft[0], "trained", 3), records.Trained, [])
    wording([problems(rft, steps=4)], "1 optimizer")


@pytest.mark.parametrize("table", ["steps", "trained", "experience", "rollouts"])
def test_lost_rows_are_not_missed(rft, table):
    said = []
    flip(tables.step_file(rft[0], table, 2))
    recovery.lose_damaged(rft[0], "hash", said.append)
    assert recovery.lost(rft[0]) == [(table, 2)]
    assert problems(rft, steps=4) == []


def test_a_damaged_file_is_named_whatever_duckdb_says(rft, capsys):
    root, path = rft[0].parents[1], damaged(rft)
    with refuses(DataError, path, rft[0]):
        problems(rft, steps=4)
    run = FakeRun(root)
    run.stages = [{"name": "rft", "kind": "rft", "directory": str(rft[0]), "inputs": {}}]
    run.view()
    with refuses(DataError, path):
        learnt.summary(view.find_view(root))
    assert cli.main(["sql", "SELECT count(*), max(reward) FROM experience", "--root", str(root)]) == 2
    assert str(path) in capsys.readouterr().err
    words = str(hashes.damaged(path, "it is short"))  # of a complete stage, with two ways to have it again
    wording(words, rft[0])
    assert "copy" in words


def test_a_damaged_plan_is_said_to_be_made_again(tmp_path):
    place = FakeRun(tmp_path).view()
    assert outcome.damaged_plans([SimpleNamespace(view=place)]) == []
    (line,) = outcome.damaged_plans([SimpleNamespace(view=flip(place / "plan.json").parent)])
    assert str(place / "plan.json") in line
    assert "Delete" not in line


def test_the_way_out_is_the_same_command_only_where_that_makes_rows_again(rft):
    """Rows that are whole and too few are found by no resume; a missing step is."""
    tables.write(tables.step_file(rft[0], "trained", 3), records.Trained, [])
    with refuses(StageError, f"delete {rft[0]}"):
        consistency.require(rft[0], KINDS["rft"].writes, rft[1], {"steps": 4})
    tables.step_file(rft[0], "trained", 3).unlink()
    with refuses(StageError) as caught:
        consistency.require(rft[0], KINDS["rft"].writes, rft[1], {"steps": 4})
    assert "delete" not in str(caught.value)


def test_a_stage_whose_rows_do_not_belong_together_is_not_complete(rft, monkeypatch, capsys, environment_kept):
    stage = rft[1]["tasks"]
    (stage / files.MANIFEST).unlink()
    files.write_json(stage / "stage.json", files.read_json(stage / "stage.json") | {"config": {
        "seed": 1, "verify": "hash", "log": {"level": "INFO"}}})
    monkeypatch.setattr(sys, "argv", ["curate", str(stage)])
    rejected, none = stage / "rejected.parquet", stage / "none.parquet"
    tables.write(none, records.Rejected, [])
    kept = rejected.read_bytes()
    rejected.write_bytes(none.read_bytes())
    with pytest.raises(SystemExit):
        run_stage(lambda context: None, "doc")
    wording(capsys.readouterr().err, "2 rows", "raw.parquet", "tasks.parquet", "rejected.parquet")
    assert not files.is_complete(stage)
    rejected.write_bytes(kept)
    run_stage(lambda context: None, "doc")
    assert files.is_complete(stage)
