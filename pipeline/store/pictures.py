"""Images that models read: stored once by the hash of their files, in the table `pictures`; rows name the hashes.

The stage tasks writes them as they were given, curate links them, and whoever computes with one decodes it: rotated as
its EXIF says, as RGB, with white behind what is transparent. So the trainer and both engines see the same pixels. Those
that agents show the model are files until the rows of their step are complete, then its table `shown`.
"""

import base64
import hashlib
import io
import warnings
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from ouroboros.pipeline.store import files, hashes, tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.records import Picture as Record

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MOST_PIXELS = 89_478_485  # PIL's bound, beyond which it warns of a decompression bomb
GROUP_BYTES = 4 << 20  # of a row group, the unit of reading
DIGITS = 32  # of a hash


class Picture(NamedTuple):
    """An image of a task or of an agent. file: the table that has it, or the directory of its file."""

    file: str
    hash: str


class Broken(DataError):
    """Bytes that are no image for a model; the message says why."""


def named(found: Iterable[str] | None, directory: Path, shown: Path | None = None) -> tuple[Picture, ...]:
    """Images by their hashes, in a row of a task or of experience. directory: of the stage with its tasks. shown: the
    file of its step with those of agents, if there are any."""
    file = str(Path(directory) / tables.LOCATIONS["pictures"])
    own = _album(str(shown)).groups if shown and shown.exists() else ()
    return tuple(Picture(str(shown) if one in own else file, one) for one in found or ())


def has_pictures(directory: Path | None) -> bool:
    """Whether tasks of a stage `curate` may have images. None: there are no tasks."""
    return directory is not None and (Path(directory) / tables.LOCATIONS["pictures"]).exists()


def link(source: Path, stage: Path, step: int | None = None) -> None:
    """Gives a stage the images of another one, of tasks or of agents in a step, if that has any."""
    if (theirs := _table(source, step)).exists():
        hashes.write(_table(stage, step), partial(files.link, theirs))


def _table(stage: Path, step: int | None) -> Path:
    return stage / tables.LOCATIONS["pictures"] if step is None else tables.step_file(stage, "shown", step)


def of_text(text: str, others: str = "") -> bytes:
    """The bytes of a data URI of an image, or of base64 alone. Nothing is fetched. others: what else is taken. Raises
    Broken."""
    head, _, body = text.rpartition(",")
    try:
        if not head or (head.startswith("data:image/") and head.endswith(";base64")):
            return base64.b64decode(body, validate=True)
    except ValueError:  # as for another head
        pass
    raise Broken(f"an image from {text[:60]!r}; needed data:image/png;base64,…{others}: addresses are not read")


def opened(data: bytes):
    """An image as PIL reads it. Raises Broken for what is none, moves, has more than MOST_PIXELS, or is grey of more
    than 8 bits."""
    from PIL import Image, ImageFile, UnidentifiedImageError

    ImageFile.LOAD_TRUNCATED_IMAGES = False  # Data-Juicer sets it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the bound is ours
            image = Image.open(io.BytesIO(data), formats=FORMATS)
        if image.width * image.height > MOST_PIXELS:
            raise Broken(f"the image has {image.width} x {image.height} pixels; needed at most {MOST_PIXELS:,}")
        if image.format != "MPO" and getattr(image, "n_frames", 1) > 1:  # MPO: a phone's JPEG with a preview
            raise Broken(f"the image has {image.n_frames} frames; needed one that does not move")
        if image.mode[0] in "IF":  # I, I;16 and F, which PIL clips at 255
            raise Broken(f"the image has pixels of mode {image.mode}; needed at most 8 bits a channel")
        image.load()
    except UnidentifiedImageError:
        raise Broken(f"{len(data)} bytes that are no image; needed one of {', '.join(FORMATS)}") from None
    except Broken:
        raise
    except Exception as error:  # decoders raise errors of many kinds on damaged files
        raise Broken(f"a damaged image ({type(error).__name__}: {error})") from None
    return image


def decoded(data: bytes):
    """The pixels that models see: an RGB image of PIL."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(opened(data)).convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image).convert("RGB")


def blank():
    """A small white image."""
    from PIL import Image

    return Image.new("RGB", (56, 56), "white")


class Kept:
    """Takes images in, each once, and makes the table `pictures` of them, or `shown` of a step. place: of its files."""

    def __init__(self, place: Path | None, refusal: str | None = None):
        """place: a directory for their files until then; None: images are looked at, and not stored. refusal: why none
        is taken."""
        self.place, self._refusal, self._records = place, refusal, {}

    def keep(self, data: bytes) -> str:
        """Its hash. Raises Broken."""
        if self._refusal:
            raise Broken(self._refusal)
        name = hashlib.sha256(data).hexdigest()[:DIGITS]
        if name not in self._records:
            image = opened(data)
            if self.place:
                self.place.mkdir(exist_ok=True)
                (self.place / name).write_bytes(data)
            self._records[name] = Record(name, _format(image), image.width, image.height, b"")
        return name

    def write(self, stage: Path, step: int | None = None, names: Collection[str] = ()) -> None:
        """Writes the table of a stage, or of a step those of its rows; without images there is none."""
        if chosen := self._records if step is None else sorted(names):
            tables.write_groups(_table(stage, step), Record, self._groups(chosen))
        files.remove_tree(self.place)  # also what a killed process left there

    def _groups(self, names: Iterable[str]) -> Iterator[list[Record]]:
        group, size = [], 0
        for name in names:
            group.append(replace(self._records[name], data=(self.place / name).read_bytes()))
            size += len(group[-1].data)
            if size >= GROUP_BYTES:
                yield group
                group, size = [], 0
        if group:
            yield group


class _Album:
    """A table of images, read a group at a time."""

    def __init__(self, path: str):
        import pyarrow.parquet as pq

        self._file = pq.ParquetFile(path)
        self.groups = {name: group for group in range(self._file.num_row_groups)
                       for name in self._file.read_row_group(group, ["hash"])["hash"].to_pylist()}
        self.group = lru_cache(maxsize=4)(self._read)

    def _read(self, group: int) -> dict[str, bytes]:
        return dict(zip(*self._file.read_row_group(group, ["hash", "data"]).to_pydict().values(), strict=True))


_album = lru_cache(maxsize=8)(_Album)


def pixels(picture: Picture):
    """The image as models see it. Raises DataError where the table of its tasks lacks it."""
    return decoded(_bytes(picture))


def data_uri(picture: Picture) -> str:
    """The image's file as a text. Raises as `pixels`."""
    data = _bytes(picture)
    return f"data:image/{_format(opened(data))};base64,{base64.b64encode(data).decode()}"


def _format(image) -> str:
    return image.format.lower().replace("mpo", "jpeg")


def _bytes(picture: Picture) -> bytes:
    loose = Path(picture.file) / picture.hash
    try:
        album = None if loose.exists() else _album(picture.file)
        return album.group(album.groups[picture.hash])[picture.hash] if album else loose.read_bytes()
    except (OSError, KeyError) as error:
        raise DataError(f"{picture.file} has no image {picture.hash}: it was deleted, or is of other tasks. Delete the "
                        "stage's directory and run it again.") from error
