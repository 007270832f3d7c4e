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
    first = digest_named([str(file), str(tmp_path)], str(tmp_path))
    assert list(first) == ["a.png"]
    monkeypatch.setattr(named_images, "READERS", {})
    assert digest_named([str(file)], str(tmp_path)) == first
    image.write_bytes(b"2")
    assert digest_named([str(file)], str(tmp_path)) != first
