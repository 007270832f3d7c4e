"""Rows drawn at random from files of every kind, each as likely as any other."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from ouroboros.pipeline.check import reading
from ouroboros.pipeline.check.reading import sample
from ouroboros.pipeline.store.errors import DataError
from tests.factories import jsonl
from tests.golden.messages import refuses, wording


def drawn(path, count, split="train", wanted=("n",)):
    """(numbers that were drawn, in order; about how many rows there are)."""
    found = sample(path, split, count, wanted)
    return sorted(row["n"] for row in found.rows), found.total


def by_turns(rows):
    """Every second row is 40 times as long."""
    return [{"n": n % 2, "text": "x" * (400 if n % 2 else 10)} for n in range(rows)]


@pytest.fixture
def small_blocks(monkeypatch):
    """Files above 8,000 bytes are large; of one, 80 stretches of 100 bytes are read."""
    monkeypatch.setattr(reading, "WHOLE", 8000)
    monkeypatch.setattr(reading, "BLOCK", 100)


def test_a_small_file_is_counted_exactly_and_all_of_it_is_drawn_when_it_is_asked_for(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [{"n": n} for n in range(100)])
    assert drawn(path, 100) == drawn(path, 999) == (list(range(100)), 100)
    assert sample(path, "train", 9, iter(["n"])) == sample(path, "train", 9, ["n"])
    path.write_text('\n{"n": 1}\n\n{"n": 2}')
    assert drawn(path, 4) == ([1, 2], 2)


@pytest.mark.parametrize(("every", "of"), [(2, 400), (3, 600), (4, 800)])
def test_what_comes_back_in_a_period_has_its_share(tmp_path, every, of):
    """Of 200 rows a share of 1/2 to 1/4 has a standard deviation of at most sqrt(0.25 / 200) = 0.035."""
    path = jsonl(tmp_path / "a.jsonl", [{"n": int(n % every == 0)} for n in range(of)])
    assert sum(drawn(path, 200)[0]) / 200 == pytest.approx(1 / every, abs=0.1)


def test_long_rows_of_a_large_file_have_their_share(tmp_path, small_blocks):
    """4,000 rows of 28 and 418 bytes in turn, 892,000 in all. A stretch of 100 bytes begins 0.45 rows on average: 80
    have about 36, half of them long; the standard deviation of that share is below sqrt(0.25 / 36) = 0.083."""
    path = jsonl(tmp_path / "a.jsonl", by_turns(4000))
    numbers, total = drawn(path, 200)
    assert 15 <= len(numbers) <= 60
    assert sum(numbers) / len(numbers) == pytest.approx(0.5, abs=0.2)
    assert total == pytest.approx(4000, rel=0.5)


def test_a_large_file_is_read_where_lines_begin(tmp_path, small_blocks):
    """Lines of 11 bytes: in 80 stretches of 100 bytes begin 727, as much as a whole stretch's 9.1 are no number; none
    is met twice, though neighbouring stretches share a line."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"n":{1000 + n}}}\n' for n in range(5000)))
    numbers, total = drawn(path, 10**6)
    assert len(numbers) == len(set(numbers)) == pytest.approx(727, abs=9)
    assert total == pytest.approx(5000, abs=60)


def test_lines_longer_than_all_that_is_read_are_seen(tmp_path, small_blocks):
    path = jsonl(tmp_path / "a.jsonl", [{"n": n, "text": "x" * 10**6} for n in range(2)])
    numbers, total = drawn(path, 5)
    assert set(numbers) <= {0, 1}
    assert 1 <= len(numbers) <= total


@pytest.mark.parametrize("before", [3, 2000])
def test_a_broken_line_is_told_by_its_number_in_the_file(tmp_path, small_blocks, before):
    """`{"n": oops` breaks at its seventh character. In the large file every later line is broken too."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n' * before + '{"n": oops\n' * (before // 2))
    with refuses(DataError, path, "column 7") as error:
        sample(path, "train", 1, ["n"])
    number = int(str(error.value).partition(", line ")[2].partition(" ")[0])
    assert number == 4 if before == 3 else before < number <= before * 1.5
    assert path.read_text().splitlines()[number - 1] == '{"n": oops'


def test_a_sorted_row_group_is_drawn_from_all_over(tmp_path):
    """As above: a fifth of the rows are 0, in front."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [int(n >= 200) for n in range(1000)]}), path)
    numbers, total = drawn(path, 200)
    assert sum(numbers) / 200 == pytest.approx(0.8, abs=0.1)
    assert total == 1000


def test_of_a_large_parquet_file_some_row_groups_are_read(tmp_path, monkeypatch):
    """200 groups of 5 rows; a number takes 8 bytes, so 400 bytes are at most 10 groups, and one is always read."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": list(range(1000))}), path, row_group_size=5)
    monkeypatch.setattr(reading, "ALL", 400)
    numbers, total = drawn(path, 10**6)
    groups = {number // 5 for number in numbers}
    assert len(numbers) == 5 * len(groups)
    assert (1 <= len(groups) <= 10, max(groups) - min(groups) > 20, total) == (True, True, 1000)


@pytest.mark.parametrize(("kind", "rows"), [(pa.string_view(), 3), (pa.string(), 65_600)])
def test_texts_of_any_type_are_drawn_also_where_a_batch_has_no_drawn_row(tmp_path, kind, rows):
    """pyarrow hands out 65,536 rows at a time; the other 64 have 0.2 of 200 drawn rows on average."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": pa.array([str(n) for n in range(rows)], kind)}), path)
    numbers, total = drawn(path, 200)
    assert (len(set(numbers)), total) == (min(rows, 200), rows)


def test_row_groups_are_drawn_by_their_rows(tmp_path, monkeypatch):
    """Room for one of a group of 10 rows, all 1, and one of 990, all 0: of 300 draws 3 find the small one, with a
    standard deviation of 1.7; drawn by turns it were 150."""
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, pa.schema({"n": pa.int64()})) as writer:
        for rows in ([1] * 10, [0] * 990):
            writer.write_table(pa.table({"n": rows}))
    monkeypatch.setattr(reading, "ALL", 1)
    numbers = []
    for seed in range(300):
        monkeypatch.setattr(reading, "SEED", seed)
        numbers += drawn(path, 1)[0]
    assert (len(numbers), 0 < sum(numbers) <= 12) == (300, True)


def test_a_file_of_empty_row_groups_has_no_rows(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, pa.schema({"n": pa.int64()})) as writer:
        writer.write_table(pa.table({"n": pa.array([], pa.int64())}))
    monkeypatch.setattr(reading, "ALL", 0)
    assert drawn(path, 9) == ([], 0)


def test_columns_that_are_not_wanted_are_not_read(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [{"a": 1, "b": {"c": 2}}], "image": [b"x"]}), path)
    found = sample(path, "train", 1, ["n.a"])
    assert found.rows == [{"n": {"a": 1, "b": {"c": 2}}}]
    assert found.parts[0].columns == ["n", "n.a", "n.b", "n.b.c", "image"]
    assert sample(path, "train", 1, ["none"]).total == 1


def test_a_directory_is_sampled_by_its_split_and_a_file_by_its_rows(tmp_path):
    """90 of 100 rows are in the first: of 50 drawn 45, with a standard deviation of 2."""
    jsonl(tmp_path / "train-0.jsonl", [{"n": 1}] * 90)
    jsonl(tmp_path / "train-1.jsonl", [{"n": 2, "more": 1}] * 10)
    jsonl(tmp_path / "test-0.jsonl", [{"n": 3}])
    numbers, total = drawn(tmp_path, 50)
    assert (len(numbers), total) == (50, 100)
    assert 38 <= numbers.count(1) <= 50
    parts = sample(tmp_path, "train", 1, ["n"]).parts
    assert [(part.path.name, part.total, part.columns) for part in parts] == [
        ("train-0.jsonl", 90, ["n"]), ("train-1.jsonl", 10, ["n", "more"])]


def test_the_work_grows_with_the_files_and_not_with_their_square(monkeypatch, tmp_path):
    asked = []

    class Counted:
        total = property(lambda self: asked.append(self) or 1)

    monkeypatch.setattr(reading, "files_of_split", lambda *_: [tmp_path / f"{i}.jsonl" for i in range(300)])
    monkeypatch.setitem(reading.SAMPLERS, ".jsonl", lambda file, *_: reading.Sample(
        [{"q": 1}], [Counted()], [(file, 0)]))
    drawn = reading.sample(tmp_path, "train", 10, ["q"])
    assert (len(drawn.rows), len(drawn.parts)) == (10, 300)
    assert len(asked) <= 3 * 300


def test_hidden_files_of_a_directory_are_no_data(tmp_path):
    """Of Jupyter's checkpoints and of macOS; they would double rows, or be no text."""
    for name in ("a.jsonl", ".ipynb_checkpoints/a-checkpoint.jsonl", "._a.jsonl"):
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).write_text('{"q": "x"}\n')
    assert reading.sample(tmp_path / "d", "train", 10, ["q"]).total == 1


def test_a_saved_dataset_is_sampled_by_its_split(tmp_path):
    from datasets import Dataset, DatasetDict

    DatasetDict({"train": Dataset.from_dict({"n": list(range(10)), "more": [0] * 10})}).save_to_disk(tmp_path / "d")
    numbers, total = drawn(tmp_path / "d", 4)
    assert (len(set(numbers)), total) == (4, 10)
    assert sample(tmp_path / "d", "train", 1, ["n"]).parts[0].columns == ["n", "more"]
    with refuses(DataError, "'trian'", "'train'"):
        sample(tmp_path / "d", "trian", 2, ["n"])


def test_sampled_rows_are_named_by_their_numbers_in_the_file(tmp_path):
    """30 rows, 7 of them odd; Parquet in row groups of 4."""
    rows = [{"n": i, "odd": i in (3, 4, 9, 17, 20, 25, 29)} for i in range(1, 31)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=4)
    Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    for name in ("a.jsonl", "a.parquet", "saved"):
        drawn = sample(tmp_path / name, "train", 30, ["n", "odd"])
        odd = [at for at, row in enumerate(drawn.rows) if row["odd"]]
        wording(drawn.named(odd), "3, 4, 9", "17, 20", "2 more")
        few = sample(tmp_path / name, "train", 5, ["n", "odd"])
        assert all(few.named([at]) == f"row {row['n']}" for at, row in enumerate(few.rows))
    both = sample(tmp_path, "train", 60, ["n", "odd"])
    wording(both.named([at for at, row in enumerate(both.rows) if row["n"] == 3 and row["odd"]] ), "3 of", "a.jsonl, 3",
            "a.parquet")
