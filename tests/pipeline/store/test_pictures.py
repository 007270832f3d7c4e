"""Images of tasks: what is one, the pixels that models see, the table that has each once."""

import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageFile
from PIL.PngImagePlugin import PngInfo

from ouroboros.pipeline.results.thumbnails import thumbnails
from ouroboros.pipeline.store import pictures, tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.pictures import Broken, Kept, decoded, named, opened, pixels
from tests.golden.messages import refuses
from tests.pictures import file, png

MOVING = {kind: file(Image.new("RGB", (2, 2)), kind, save_all=True, append_images=[Image.new("RGB", (2, 2), "red")])
          for kind in ("PNG", "WEBP")}
FRAMES = file(Image.new("L", (2, 2)), "GIF", save_all=True, append_images=[Image.new("L", (2, 2), 9)])


def bomb() -> bytes:
    """A PNG whose text of 8 kB is one of 8 MB."""
    text = PngInfo()
    text.add_text("a", "b" * (8 << 20), zip=True)
    return file(Image.new("L", (2, 2)), pnginfo=text)


@pytest.mark.parametrize(("data", "words"), [
    (file(Image.new("RGB", (2, 2)), exif=b"Exif\0\0no tags at all"), "damaged"), (b"", "0 bytes"),
    (png(400, 2), "400 x 2"), (MOVING["PNG"], "2 frames"), (MOVING["WEBP"], "2 frames"), (bomb(), "damaged"),
    (b"no image", "8 bytes"), (png()[:70], "damaged"), (FRAMES, "2 frames"),
    (file(Image.new("1", (10_000, 10_000))), "10000 x 10000"), (file(Image.new("I;16", (2, 2), 61_440)), "I;16"),
    (file(Image.new("I", (2, 2)), "TIFF"), "mode I;"), (file(Image.new("F", (2, 2)), "TIFF"), "mode F")])
def test_what_is_no_image_for_a_model(data, words, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)  # as Data-Juicer does when it is imported
    with pytest.raises(Broken, match=words):
        opened(data)


def test_an_image_is_seen_as_its_exif_rotates_it():
    rotated = Image.new("RGB", (2, 1))
    rotated.putdata([(255, 0, 0), (0, 0, 255)])
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter clockwise: left becomes top
    seen = decoded(file(rotated, "PNG", exif=exif))
    assert seen.size == (1, 2)
    assert [seen.getpixel((0, y)) for y in (0, 1)] == [(255, 0, 0), (0, 0, 255)]


def test_metadata_that_is_cut_off_is_no_warning(tmp_path):
    """A TIFF header with a directory of three tags, of which only that of the orientation is there. In a process of its
    own, as pytest has filters for each test."""
    tag = b"\x12\x01\x03\0\x01\0\0\0\x06\0\0\0"
    (tmp_path / "a.jpg").write_bytes(file(Image.new("RGB", (4, 2)), "JPEG",
                                          exif=b"Exif\0\0II*\0\x08\0\0\0\x03\0" + tag))
    program = ("import sys, pathlib; from ouroboros.pipeline.store.pictures import decoded; "
               "print(decoded(pathlib.Path(sys.argv[1]).read_bytes()).size)")
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "a.jpg"], capture_output=True, text=True,
                          check=True)
    assert (done.stdout, done.stderr) == ("(2, 4)\n", "")


@pytest.mark.parametrize(("mode", "value", "seen"), [
    ("RGBA", (0, 0, 0, 0), (255, 255, 255)), ("RGBA", (200, 0, 0, 255), (200, 0, 0)), ("L", 7, (7, 7, 7)),
    ("1", 1, (255, 255, 255)), ("CMYK", (0, 0, 0, 255), (0, 0, 0))])
def test_every_mode_is_seen_as_rgb_on_white(mode, value, seen):
    assert decoded(file(Image.new(mode, (1, 1), value), "TIFF")).getpixel((0, 0)) == seen


def test_a_photo_of_a_phone_is_a_jpeg_in_spite_of_its_preview(tmp_path):
    photo = file(Image.new("RGB", (4, 2), "red"), "MPO", save_all=True, append_images=[Image.new("RGB", (2, 1))])
    kept = Kept(tmp_path / "p")
    name = kept.keep(photo)
    kept.write(tmp_path)
    row, = pq.read_table(tmp_path / "pictures.parquet").to_pylist()
    assert (row["format"], row["width"], row["height"]) == ("jpeg", 4, 2)
    assert pixels(*named([name], tmp_path)).size == (4, 2)


def test_a_stage_has_each_image_once(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "GROUP_BYTES", 1)  # a row group for each
    kept = Kept(tmp_path / ".pictures.tmp")
    names = [kept.keep(png(seed=seed)) for seed in (0, 1, 0)]
    kept.write(tmp_path)
    rows = pq.read_table(tmp_path / "pictures.parquet").to_pylist()
    assert [(row["hash"], row["format"], row["width"], row["height"]) for row in rows] == [
        (name, "png", 8, 8) for name in names[:2]]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    (tmp_path / "curate").mkdir()
    pictures.link(tmp_path, tmp_path / "curate")
    assert [pixels(one).getpixel((3, 4)) for one in named(names, tmp_path / "curate")] == [
        decoded(png(seed=seed)).getpixel((3, 4)) for seed in (0, 1, 0)]
    with pytest.raises(DataError):
        pixels(*named(["0" * 32], tmp_path / "curate"))


def test_a_stage_without_images_has_no_table(tmp_path):
    Kept(tmp_path / "p").write(tmp_path)
    pictures.link(tmp_path, tmp_path / "curate")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("listed", [True, False])
def test_a_damaged_table_of_images_is_named(tmp_path, listed):
    kept = Kept(tmp_path / ".shown-1")
    kept.write(tmp_path, 1, [name := kept.keep(png())])
    found = tables.step_file(tmp_path, "shown", 1)
    found.write_bytes(found.read_bytes()[:-40])
    if not listed:
        (tmp_path / "shown_hashes.jsonl").unlink()
    with refuses(DataError, "step=000001.parquet"):
        thumbnails([name], [tmp_path], 8, 1)
    found.unlink()
    assert thumbnails([name], [tmp_path], 8, 1) == []
