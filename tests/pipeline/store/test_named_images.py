"""Which images a data file names, and what an identity has of them."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ouroboros.pipeline.store import named_images
from ouroboros.pipeline.store.named_images import digest_named, names_in

TALK = [{"role": "user", "content": [{"type": "image", "image": "b/b.JPG"}, {"type": "text", "text": "x.png in it?"}]}]
ROWS = [{"image": "a.png", "images": ["c 1.webp", "é.gif"], "messages": TALK, "text": json.dumps(TALK), "n": 1},
        {"image": None, "images": [], "messages": [], "text": "a.png is named", "n": 2}]
NAMED = {"a.png", "b/b.JPG", "c 1.webp", "é.gif"}


@pytest.mark.parametrize("ascii_alone", [True, False])
def test_names_in_a_jsonl_file(tmp_path, ascii_alone):
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(row, ensure_ascii=ascii_alone) + "\n" for row in ROWS), encoding="utf-8")
    assert set(names_in(file)) == NAMED


def test_names_in_a_parquet_file_of_any_depth(tmp_path):
    pq.write_table(pa.Table.from_pylist([row | {"struct": {"bytes": b"\xff", "path": "d.bmp"}} for row in ROWS]),
                   tmp_path / "a.parquet")
    assert set(names_in(tmp_path / "a.parquet")) == NAMED | {"d.bmp"}


def test_a_changed_image_changes_the_digest_and_an_unchanged_file_is_not_read_again(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "b.png").write_bytes(b"outside")
    image, file = tmp_path / "data/a.png", tmp_path / "data/a.jsonl"
    file.write_text('{"image": "a.png"}\n{"image": "../b.png"}\n{"image": "none.png"}\n')
    image.write_bytes(b"1")
    first = digest_named([str(file)], str(tmp_path))
    assert list(first) == ["0/a.png"]
    with monkeypatch.context() as patched:
        patched.setattr(named_images, "names_in", None)
        assert digest_named([str(file)], str(tmp_path)) == first
    image.write_bytes(b"2")
    assert digest_named([str(file)], str(tmp_path)) != first


def test_files_that_name_the_same_image_and_links_below_a_directory_count(tmp_path):
    for place in ("data/a", "data/b", "elsewhere"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "1.png").write_bytes(b"1")
    (tmp_path / "data/a/images").symlink_to(tmp_path / "elsewhere")
    for place, name in (("a", "images/1.png"), ("a", "1.png"), ("b", "1.png")):
        with open(tmp_path / "data" / place / "r.jsonl", "a") as file:
            file.write(json.dumps({"image": name}) + "\n")
    known = [digest_named([str(tmp_path / "data")], str(tmp_path))]
    for changed in ("data/a/1.png", "data/b/1.png", "elsewhere/1.png"):
        (tmp_path / changed).write_bytes(b"22")
        known.append(digest_named([str(tmp_path / "data")], str(tmp_path)))
    assert len({json.dumps(one) for one in known}) == 4


def test_columns_of_every_kind_are_read_and_what_is_damaged_is_left_to_the_stage(tmp_path):
    table = pa.table({
        "category": pa.array(["a.png", "x"]).dictionary_encode(), "map": pa.array([[("k", "b.png")], []], pa.map_(
            pa.string(), pa.string())), "path": ["C:\\img\\c.png", 'd"e.png'], "bytes": [b"f.png", b""]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert set(names_in(tmp_path / "a.parquet")) == {"a.png", "b.png", "C:\\img\\c.png", 'd"e.png'}
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    (tmp_path / "c.jsonl").write_text('{"image": "C:\\img\\b.png"}\n{"image": "a.png"}\n')
    assert (names_in(tmp_path / "b.parquet"), names_in(tmp_path / "c.jsonl")) == ([], ["a.png"])


def test_images_below_a_linked_directory_of_a_saved_dataset_count(tmp_path):
    """A dataset of splits names them from its own directory; without links its files count as a whole."""
    from datasets import Dataset, DatasetDict

    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/1.png").write_bytes(b"1")
    DatasetDict({"train": Dataset.from_list([{"image": "images/1.png", "n": 1}])}).save_to_disk(tmp_path / "data")
    asked = [str(tmp_path / "data")], str(tmp_path)
    assert digest_named(*asked) == {}
    (tmp_path / "data/images").symlink_to(tmp_path / "elsewhere")
    first = digest_named(*asked)
    (tmp_path / "elsewhere/1.png").write_bytes(b"22")
    assert [*first] == ["0/images/1.png"]
    assert digest_named(*asked) != first


def test_rows_of_a_parquet_file_without_names_are_not_parsed(tmp_path, monkeypatch):
    parsed = []
    monkeypatch.setattr(named_images, "_names", lambda value: parsed.append(value) or ())
    monkeypatch.setattr(named_images, "ROWS", 2)
    rows = [json.dumps(TALK), "x", *["[1, 2]"] * 4]
    pq.write_table(pa.table({"messages": [*rows, "[3]"]}), tmp_path / "a.parquet")
    assert names_in(tmp_path / "a.parquet") == []
    assert [one["messages"] for one in parsed] == rows[:2]
