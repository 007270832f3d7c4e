"""Tables are written and read by one schema; questions never fail for want of a file."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.workflows.protocol.kept import Kept
from tests.factories import row
from tests.golden.messages import refuses, wording

TASKS = [row(records.Task, task_id="t1", row=0, split="train", question="1 2 = 3", answer="{}"),
         row(records.Task, task_id="t2", row=1, split="sft", question="ü", answer="{}", solution="1+2")]


def write_plain(path, table: pa.Table):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


def as_nullable(rows, record) -> pa.Table:
    table = tables.to_arrow(rows, record)
    return table.cast(pa.schema([pa.field(f.name, f.type) for f in table.schema]))


def test_rows_come_back_as_they_were_also_from_columns_in_another_order_without_our_metadata(tmp_path):
    tables.write(tmp_path / "tasks.parquet", records.Task, TASKS)
    shuffled = as_nullable(TASKS, records.Task).select(records.schema(records.Task).names[::-1])
    other = write_plain(tmp_path / "other.parquet", shuffled.replace_schema_metadata(None))
    for path in (tmp_path / "tasks.parquet", other):
        assert [records.Task(**r) for r in tables.read(path, records.Task).to_pylist()] == TASKS


def test_every_record_has_a_place_a_schema_and_a_line_for_each_column(tmp_path):
    assert set(records.TABLES) == set(tables.LOCATIONS)
    for name, record in records.TABLES.items():
        tables.write(tmp_path / f"{name}.parquet", record, [row(record)])
        assert tables.read(tmp_path / f"{name}.parquet", record).num_rows == 1
        assert all(field.metadata["doc"] for field in record.__dataclass_fields__.values())


def test_a_null_where_none_is_allowed_and_a_table_of_other_columns_are_not_written(tmp_path):
    with refuses(AssertionError, "task_id"):
        tables.write(tmp_path / "a.parquet", records.Task, [row(records.Task, task_id=None, answer=None)])
    with pytest.raises(pa.ArrowException):
        tables.write(tmp_path / "a.parquet", records.Task, [row(records.Task, task_id=3)])
    with refuses(ValueError, "names"):
        tables.write(tmp_path / "a.parquet", records.Task, pa.table({"task_id": ["t"]}))
    assert list(tmp_path.iterdir()) == []


def test_another_schema_names_file_columns_and_the_stage_to_make_again(tmp_path):
    stage = tmp_path / "store" / "curate-0123abcd"
    table = as_nullable(TASKS, records.Task).drop(["answer"]).append_column("extra", pa.array([1, 2]))
    table = table.set_column(table.schema.get_field_index("row"), "row", pa.array(["0", "1"]))
    path = write_plain(stage / "tasks.parquet", table)
    with pytest.raises(DataError) as caught:
        tables.read(path, records.Task)
    message = str(caught.value)
    assert str(path) in message
    wording(message, "'answer'", "'extra'", "'row'", "int64", stage)


def test_a_null_in_a_file_of_others_and_a_missing_file_are_refused(tmp_path):
    table = as_nullable(TASKS, records.Task)
    path = write_plain(tmp_path / "tasks.parquet", table.set_column(0, "task_id", pa.array(["t1", None])))
    with refuses(DataError, "tasks.parquet", "'Task'", "task_id"):
        tables.read(path, records.Task)
    with refuses(DataError, "nothing.parquet", "'Task'"):
        tables.read(tmp_path / "nothing.parquet", records.Task)


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "flipped"])
def test_a_damaged_file_is_named(tmp_path, damage):
    path = tmp_path / "tasks.parquet"
    tables.write(path, records.Task, [row(records.Task, task_id=f"{i}", question=f"{i}" * 40) for i in range(500)])
    good = path.read_bytes()
    flipped = good[:4] + bytes(b ^ 0x5A for b in good[4:300]) + good[300:]
    path.write_bytes({"empty": b"", "text": b"question,answer\n", "cut": good[:-9], "flipped": flipped}[damage])
    with refuses(DataError, "tasks.parquet"):
        tables.read(path, records.Task)


def test_files_of_before_a_column_was_added_are_read_with_null_in_it(tmp_path):
    """Also where one stage has files of both kinds; a column that was always there must be."""
    (new,) = [row(records.Score, metric="pass@2", tasks=3, rows=4, trained_tasks=1)]
    stage = tmp_path / "evaluate-1"
    tables.write(tables.step_file(stage, "scores", 2), records.Score, [new])
    whole = pq.read_table(tables.step_file(stage, "scores", 2))
    pq.write_table(whole.drop(["rows", "trained_tasks"]), tables.step_file(stage, "scores", 1))
    (old,) = tables.read_scores(stage, 1)
    assert (old.tasks, old.rows, old.trained_tasks) == (3, None, None)
    found = tables.connect([("a/b", stage)]).execute("SELECT tasks, rows, trained_tasks FROM scores ORDER BY rows")
    assert found.fetchall() == [(3, 4, 1), (3, None, None)]
    pq.write_table(whole.drop(["tasks"]), tables.step_file(stage, "scores", 1))
    with refuses(DataError, "'tasks'"):
        tables.read_scores(stage, 1)


def test_steps_present_are_ascending_and_ignore_what_is_being_written(tmp_path):
    for step in (11, 2):
        tables.write(tables.step_file(tmp_path, "experience", step), records.Experience, [])
        tables.write(tables.step_file(tmp_path, "steps", step), records.Step, [])
    (tmp_path / "steps" / ".step=000003.parquet.77.tmp").touch()
    (tmp_path / "experience" / "step=000004").mkdir()
    (tmp_path / "experience" / ".step=000004.parquet.77.tmp").touch()
    assert tables.steps_present(tmp_path, "experience") == [2, 11]
    assert tables.steps_present(tmp_path, "steps") == [2, 11]
    assert tables.steps_present(tmp_path, "rollouts") == []


def test_without_any_file_every_view_is_empty_and_has_its_columns():
    session = tables.connect()
    for name, record in records.TABLES.items():
        answer = session.execute(f"SELECT * FROM {name}")
        front = ["run", "stage"] if name in tables.DATA else ["run"]
        assert [column[0] for column in answer.description] == [*front, *record.__dataclass_fields__]
        assert answer.fetchall() == []


def test_several_runs_are_told_apart_and_a_missing_table_is_no_row(tmp_path):
    for name, rows in (("a", TASKS), ("b", TASKS[:1])):
        tables.write(tmp_path / name / "tasks.parquet", records.Task, rows)
    pairs = [("p/a", tmp_path / "a"), ("p/b", tmp_path / "b"), ("p/c", tmp_path / "c")]
    answer = tables.connect(pairs).execute("SELECT run, count(*) FROM tasks GROUP BY run ORDER BY run").fetchall()
    assert answer == [("p/a", 2), ("p/b", 1)]


def test_steps_that_come_later_are_seen_and_types_are_those_of_the_record(tmp_path):
    def add(step):
        made = row(records.Experience, experience_id=f"e{step}", step=step, reward_components={"accuracy": 1.0})
        tables.write(tables.step_file(tmp_path, "experience", step), records.Experience, [made])

    add(1)
    session = tables.connect([("r", tmp_path)])
    add(2)
    found = session.execute("SELECT step, reward_components['accuracy'] FROM experience ORDER BY step").fetchall()
    assert found == [(1, 1.0), (2, 1.0)]


@pytest.mark.parametrize("damage", [b"", b"PAR1 and no end"])
def test_a_damaged_file_under_a_view_is_named(tmp_path, damage):
    stage = tmp_path / "store" / "o'brien-1"
    stage.mkdir(parents=True)
    (stage / "tasks.parquet").write_bytes(damage)
    with refuses(DataError, "o'brien-1/tasks.parquet", "/o'brien-1"):
        tables.connect([("r", stage)])


def test_files_of_others_under_a_view_name_the_view_and_the_stage(tmp_path):
    path = write_plain(tmp_path / "tasks.parquet", pa.table({"run": ["mine"]}))
    with refuses(DataError, "'tasks'", path.parent):
        tables.connect([("r", tmp_path)])


@pytest.mark.parametrize("awkward", ["o'brien", "run[1]", "what?", "a*b", 'say "x"', "two words"])
def test_any_directory_and_run_name_can_be_asked(tmp_path, awkward):
    stage = tmp_path / awkward / "store" / "curate-1"
    tables.write(stage / "tasks.parquet", records.Task, TASKS)
    assert tables.connect([(awkward, stage)]).execute("SELECT DISTINCT run FROM tasks").fetchall() == [(awkward,)]
    session = tables.connect()
    assert session.execute(f"SELECT count(*) FROM {tables.source([stage / 'tasks.parquet'])}").fetchall() == [(2,)]


def test_lists_that_are_arrays_are_the_same_column():
    """Empty lists, nulls, sets of other widths, by hand and by Kept."""
    kept = Kept.of([np.array([5, 7]), np.array([]), np.array([1])])
    rows = [row(records.Experience, kept_tokens=value) for value in (None, kept.lists(), [], Kept.of([]).lists())]
    made = tables.to_arrow(rows, records.Experience)["kept_tokens"]
    assert made.to_pylist() == [None, [[5, 7], [], [1]], [], []]
