"""Where records have images, and records whose images cannot be used."""

import base64
import hashlib
import json
import os
from pathlib import Path

import datasets
import pytest

from ouroboros.operators.digits import HELD, digits
from ouroboros.operators.formats import read_records
from ouroboros.pipeline.check.reading import sample
from ouroboros.pipeline.settings.data import BufferFormat, TaskFormat
from ouroboros.pipeline.store import named_images
from ouroboros.pipeline.store.data_files import open_files
from tests.pictures import png

A, B = png(), png(9)
URI = "data:image/png;base64," + base64.b64encode(A).decode()
IMAGE = {"type": "image"}


def name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def text(said: str) -> dict:
    return {"type": "text", "text": said}


def read(record: dict, **columns):
    (made,) = read_records([record], TaskFormat(**columns), "task", "a.parquet", 0)
    return made


@pytest.mark.parametrize(("question", "images", "parts", "found"), [
    ("<image> what?", A, [IMAGE, text(" what?")], [A]), ("what?", [A, B], [IMAGE, IMAGE, text("what?")], [A, B]),
    ("a<image>b<image>", [B, URI], [text("a"), IMAGE, text("b"), IMAGE], [B, A]), ("<image>", A, [IMAGE], [A]),
    ("q", {"bytes": A, "path": None}, [IMAGE, text("q")], [A])])
def test_a_column_of_images_stands_for_the_marks(question, images, parts, found):
    made = read({"question": question, "answer": "1", "images": images}, image_key="images")
    assert json.loads(made.messages)["messages"] == [{"role": "user", "content": parts}]
    assert made.pictures == [name(one) for one in found]
    assert made.question.count("<image>") == len(found)


@pytest.mark.parametrize("part", [
    {"type": "image_url", "image_url": {"url": URI}}, {"type": "input_image", "image_url": URI},
    {"type": "image", "image": A}, {"type": "image", "url": URI}, {"type": "image", "image": {"bytes": A}},
    {"type": "image", "base64": URI.partition(",")[2]}])
def test_messages_have_images_in_the_forms_of_openai_and_hugging_face(part):
    asked = [{"role": "user", "content": [text("see "), part]}]
    made = read({"question": asked, "answer": "1"}, prompt_type="messages")
    assert (made.question, made.pictures) == ("see <image>", [name(A)])
    assert json.loads(made.messages)["messages"] == [{"role": "user", "content": [text("see "), IMAGE]}]


def test_parts_without_a_source_take_those_of_the_column_in_order():
    asked = [{"role": "user", "content": [IMAGE, text("or"), {"type": "image", "image": B}, IMAGE]}]
    made = read({"question": asked, "answer": "1", "im": [A, A]}, prompt_type="messages", image_key="im")
    assert made.pictures == [name(A), name(B), name(A)]


def test_a_demonstration_keeps_its_images():
    asked = [{"role": "user", "content": [text("see "), {"type": "image", "image": A}]},
             {"role": "assistant", "content": "it"}]
    (made,) = read_records([{"messages": asked}], BufferFormat(prompt_type="messages", prompt_key="messages"),
                           "demonstration", "a.jsonl", 0)
    assert (made.solution, made.pictures, made.problem) == ("it", [name(A)], None)


@pytest.mark.parametrize(("question", "images", "words"), [
    ("<image> or <image>", A, "1 images, and 2 places"), ("<image>", [A, B], "2 images, and 1 places"),
    ("q", "http://localhost/a.png", "localhost"), ("q", "data:image/png;base64,?", "base64"), ("q", b"x", "1 bytes"),
    ("q", "data:video/mp4;base64,AAAA", "data:video"), ("q", "hf://a/b.png", "hf://"), ("q", "//host/a.png", "//host"),
    ("q", "none.png", "none.png"), ("q", "file:///a.png", "file:"), ("q", {"bytes": None, "path": "/a.png"}, "/a.png"),
    ("q", [A, None], "without a source")])
def test_images_that_cannot_be_used_make_a_record_unusable(question, images, words):
    made = read({"question": question, "answer": "1", "images": images}, image_key="images")
    assert words in made.problem
    assert (made.question, made.pictures) == (None, None)


@pytest.mark.parametrize(("turn", "words"), [
    ({"role": "user", "content": [IMAGE]}, "without a source"),
    ({"role": "user", "content": [{"type": "video", "video": "a.mp4"}]}, "parts video"),
    ({"role": "user", "content": [{"type": "image", "image": A}, text("a <image>")]}, "<image> in the text"),
    ({"role": "system", "content": [{"type": "image", "image": A}]}, "a turn of system")])
def test_turns_whose_images_cannot_be_used(turn, words):
    made = read({"question": [turn, {"role": "user", "content": "q"}], "answer": "1"}, prompt_type="messages")
    assert words in made.problem


@pytest.fixture
def data(tmp_path):
    """A directory with train.jsonl and images below it; next to it is one that no record reads."""
    place = tmp_path / "data"
    (place / "images").mkdir(parents=True)
    (place / "images/a b.png").write_bytes(A)
    (tmp_path / "secret.png").write_bytes(B)
    (place / "linked.png").symlink_to(tmp_path / "secret.png")
    os.mkfifo(place / "pipe.png")
    return place


def named(place, **record):
    return next(read_records([{"question": "q", "answer": "1"} | record], TaskFormat(image_key="image"), "task",
                             str(place / "train.jsonl"), 0))


def test_files_below_the_directory_of_the_data_are_read(data, monkeypatch):
    for source in ("images/a b.png", "./images/a b.png", "./none/../images/a b.png", str(data / "images/a b.png"),
                   {"bytes": None, "path": "images/a b.png"}):
        assert named(data, image=source).pictures == [name(A)]
    assert named(data, image=["linked.png", "images/a b.png"]).pictures == [name(B), name(A)]
    monkeypatch.chdir(data.parent)
    assert named(Path("data"), image=str(data / "images/a b.png")).pictures == [name(A)]


@pytest.mark.parametrize("source", [
    "../secret.png", "images/../../secret.png", "/etc/x.png", "images/none.png", "images", "pipe.png", "a.png\0",
    "a" * 5000 + ".png", "file:secret.png", "~/a.png"])
def test_other_files_are_not(data, source):
    assert repr(source[:40])[:-1] in named(data, image=source).problem


def test_a_file_larger_than_any_image_is_not_read(data, monkeypatch):
    monkeypatch.setattr(named_images, "MOST_BYTES", len(A) - 1)
    assert f"{len(A)} bytes" in named(data, image="images/a b.png").problem


def test_a_conversation_of_llava_has_the_image_of_its_column(data):
    record = {"image": "images/a b.png", "conversations": [
        {"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "a cat"}]}
    form = BufferFormat(prompt_type="messages", prompt_key="conversations", image_key="image")
    (made,) = read_records([record], form, "demonstration", str(data / "train.jsonl"), 0)
    assert (made.solution, made.pictures, made.question) == ("a cat", [name(A)], "<image>\nWhat?")


@pytest.mark.parametrize("column", ["images/a b.png", ["images/a b.png"] * 2])
def test_a_dataset_of_save_to_disk_has_images_as_their_files(data, column):
    """Its files have the bytes; the decoded ones would be another file."""
    text, image = datasets.Value("string"), datasets.Image()
    several = isinstance(column, list)
    kinds = {"question": text, "answer": text, "image": [image] if several else image,
             "tools": datasets.List(datasets.Json())}
    made = datasets.Dataset.from_dict({"question": ["q"], "answer": ["1"], "tools": [[{"name": "add"}]], "image": [
        [str(data / one) for one in column] if several else str(data / column)]}, features=datasets.Features(kinds))
    made.save_to_disk(str(data / "saved"))
    ((file, records),) = open_files(str(data / "saved"), None, "train", "path")
    (record,) = records
    assert record["tools"] == [{"name": "add"}]
    (row,) = read_records([record], TaskFormat(image_key="image"), "task", file, 0)
    assert row.pictures == [name(A)] * (2 if several else 1)
    (drawn,) = sample(data / "saved", "train", 1, ["image"]).rows
    assert (drawn["image"][0] if several else drawn["image"])["bytes"] == A


def test_a_row_without_images_is_as_before():
    assert read({"question": "q", "answer": "1", "images": None}, image_key="images") == read(
        {"question": "q", "answer": "1"})


def test_sums_of_digits_that_are_held_out_have_none_of_the_training_images():
    rows = list(digits(1, tasks=50, tests=40, demonstrated=7))
    of = {split: [row for row in rows if row.split == split] for split in ("sft", "train", "test")}
    assert [len(of[split]) for split in of] == [1797 - HELD + 7, 50, 40]
    seen = {one for split in ("sft", "train") for row in of[split] for one in row.pictures}
    assert not seen & {one for row in of["test"] for one in row.pictures}
    assert {row.answer for row in of["test"]} <= {str(one) for one in range(19)}
    assert [(row.question, row.solution) for row in rows[:3]] == [("<image>", str(one)) for one in (0, 1, 2)]
