"""Hashes of files: recorded with them, kept through deletions, and different after any change."""

import shutil

import duckdb
import pandas
import pyarrow.dataset
import pytest
import xxhash

from ouroboros.pipeline.job.inputs import require_intact
from ouroboros.pipeline.settings.kinds import KINDS
from ouroboros.pipeline.store import files, hashes, records, tables
from ouroboros.pipeline.store.errors import DataError
from tests.damage import cut_short, flip
from tests.factories import row
from tests.golden.messages import refuses


def task(path):
    tables.write(path, records.Task, [row(records.Task, question="1 + 1")])
    return path


def test_a_table_is_listed_with_its_size_and_hash(tmp_path):
    tables.write(tmp_path / "tasks.parquet", records.Task, [])
    path = task(tmp_path / "tasks.parquet")  # written again
    content = path.read_bytes()
    assert hashes.recorded(tmp_path) == {"tasks.parquet": (len(content), xxhash.xxh3_64(content).hexdigest())}
    assert hashes.entry_of(path) == hashes.recorded(tmp_path)["tasks.parquet"]
    assert hashes.difference(path, hashes.entry_of(path)) is None


def test_experience_of_all_steps_has_one_list(tmp_path):
    for step in (1, 2):
        tables.write(tables.step_file(tmp_path, "experience", step), records.Experience, [])
    assert list(hashes.recorded(tmp_path / "experience")) == ["step=000001.parquet", "step=000002.parquet"]
    hashes.remove(tables.step_file(tmp_path, "experience", 1))
    assert list(hashes.recorded(tmp_path / "experience")) == ["step=000002.parquet"]
    assert tables.steps_present(tmp_path, "experience") == [2]


def test_no_changed_bit_of_a_line_counts(tmp_path):
    """A line that is not what was written names no other file, and no other size or hash."""
    task(tmp_path / "tasks.parquet")
    line, written = (tmp_path / hashes.LIST).read_bytes(), dict(hashes.recorded(tmp_path))
    for bit in range(8 * (len(line) - 1)):
        changed = bytearray(line)
        changed[bit // 8] ^= 1 << bit % 8
        entries = {}
        for part in bytes(changed).splitlines():
            hashes._apply(part, entries)
        assert entries in ({}, written)


def test_a_list_of_an_older_release_is_read_and_goes_on_under_the_new_name(tmp_path):
    old = tmp_path / "hashes.jsonl"
    old.write_text('["tasks.parquet", 3, "0123456789abcdef"]\n')
    assert hashes.recorded(tmp_path) == {"tasks.parquet": (3, "0123456789abcdef")}
    hashes.add(tmp_path, {"raw.parquet": (4, "89abcdef01234567")})
    assert hashes.recorded(tmp_path) == {"tasks.parquet": (3, "0123456789abcdef"),
                                         "raw.parquet": (4, "89abcdef01234567")}
    assert not old.exists()


@pytest.mark.parametrize("table", ["experience", "trained"])
def test_other_programs_read_a_directory_of_steps(tmp_path, table):
    record = records.TABLES[table]
    for step in (1, 2):
        tables.write(tables.step_file(tmp_path, table, step), record, [row(record)])
    assert len(pandas.read_parquet(tmp_path / table)) == 2
    assert len(pyarrow.dataset.dataset(tmp_path / table).to_table()) == 2
    assert len(duckdb.sql(f"FROM '{tmp_path}/{table}/*.parquet'").fetchall()) == 2
    # polars reads no directory with files of two kinds, and takes a directory `step=000001` for a column
    assert [path.name for path in sorted((tmp_path / table).rglob("*"))] == [
        "step=000001.parquet", "step=000002.parquet"]


def test_steps_of_an_older_release_are_read_and_go_on_in_the_new_layout(tmp_path):
    old, lists = tmp_path / "experience" / "step=000001" / "part-0.parquet", hashes.lists_of(tmp_path / "experience")
    tables.write(old, records.Experience, [row(records.Experience, step=1)])
    lists[0].rename(lists[1])
    known = hashes.entry_of(old)
    for step in (1, 2):
        tables.write(tables.step_file(tmp_path, "experience", step), records.Experience, [
            row(records.Experience, step=step)])
    assert tables.step_file(tmp_path, "experience", 1) == old
    assert tables.steps_present(tmp_path, "experience") == [1, 2]
    assert [one.step for one in tables.read_steps(tmp_path, "experience", [1, 2])] == [1, 2]
    assert [path.exists() for path in lists] == [True, False, False]
    assert (hashes.entry_of(old), len(hashes.recorded(tmp_path / "experience"))) == (known, 2)
    found = tables.connect([("mine", tmp_path)]).sql("SELECT step FROM experience ORDER BY step").fetchall()
    assert found == [(1,), (2,)]


@pytest.mark.parametrize("damage", [flip, cut_short, lambda path: path.unlink()])
def test_a_damaged_table_is_not_read_and_the_stage_is_named(tmp_path, damage):
    stage = tmp_path / "store" / "curate-0123abcd"
    path = task(stage / "tasks.parquet")
    files.write_json(stage / files.MANIFEST, {})
    assert len(tables.read(path, records.Task)) == 1
    damage(path)
    with refuses(DataError, stage) as caught:
        tables.read(path, records.Task)
    assert str(path) in str(caught.value)
    with refuses(DataError, "damaged"):
        tables.source([path])


@pytest.fixture
def trained(tmp_path):
    """A complete stage with a model and two steps."""
    stage = tmp_path / "store" / "sft-0123abcd"
    for step in (1, 2):
        tables.write(tables.step_file(stage, "steps", step), records.Step, [])
    files.write_json(stage / "stage.json", {})
    files.write_json(stage / "model" / "config.json", {})
    (stage / "model" / "model.safetensors").write_bytes(b"weights")
    (stage / "stage.log").write_text("")
    files.write_json(stage / files.MANIFEST, {"files": hashes.seal(stage)})
    return stage


def test_the_manifest_of_a_stage_covers_its_model_and_its_tables(trained):
    assert set(hashes.contents(trained)) == {
        "_hashes.jsonl", "model/config.json", "model/model.safetensors", "steps_hashes.jsonl",
        "steps/step=000001.parquet", "steps/step=000002.parquet"}
    assert hashes.differences(trained, hashes.contents(trained)) == {}


class Log:
    """Collects lines."""

    def __init__(self):
        self.lines = []

    def info(self, line, *arguments, **_):
        self.lines.append(line % arguments)


def checked(stage, kind="rft", verify="hash"):
    log = Log()
    require_intact(KINDS[kind], {"model": stage, "own": stage.parents[1] / "model"}, str(stage.parents[1]), verify, log)
    return log.lines


def test_a_stage_starts_with_intact_inputs_alone(trained):
    assert "3 files" in checked(trained)[0]
    flip(trained / "model" / "model.safetensors")
    checked(trained, verify="size")
    with refuses(DataError, "model.safetensors", "sft-0123abcd"):
        checked(trained)
    cut_short(trained / "model" / "model.safetensors")
    with refuses(DataError, "6 bytes", "7 were"):
        checked(trained, verify="size")


def test_what_a_stage_does_not_read_may_be_damaged(trained):
    tables.step_file(trained, "steps", 1).unlink()
    checked(trained)
    with refuses(DataError, "step=000001.parquet"):
        checked(trained, kind="report")


def test_a_damaged_list_is_named_itself(trained):
    flip(trained / hashes.LIST)
    with refuses(DataError, "hashes.jsonl"):
        checked(trained)


def test_a_stage_of_an_older_release_is_used_and_said_once(trained):
    files.write_json(trained / files.MANIFEST, {})
    (trained / hashes.LIST).unlink()
    (line,) = checked(trained)
    assert "unchecked: sft-0123abcd" in line


def test_a_list_is_read_on_from_where_it_was_read_to_and_again_when_it_is_another_one(tmp_path):
    table = tmp_path / "steps"
    for name in ("a", "b"):
        hashes.write(table / name, lambda path: path.write_text("x"))
    assert sorted(hashes.recorded(table)) == ["a", "b"]
    with open(hashes.lists_of(table)[0], "a") as file:
        file.write('["c", 1')  # cut short by a power loss
    hashes.remove(table / "a")
    assert sorted(hashes.recorded(table)) == ["b"]
    shutil.rmtree(table)
    hashes.forget_all(table)
    assert hashes.entry_of(table / "b") is None
    for name in ("d", "e", "f"):
        hashes.write(table / name, lambda path: path.write_text("y"))
    assert sorted(hashes.recorded(table)) == ["d", "e", "f"]
