"""Images that models read: stored once by the hash of their files, in the table `pictures`; rows name the hashes.

The stage tasks writes them as they were given, curate links them, and whoever computes with one decodes it: rotated as
its EXIF says, as RGB, with white behind what is transparent. So the trainer and both engines see the same pixels. Those
that agents show the model are files until the rows of their step are complete, then its table `shown`, of an evaluation
`sample_shown`.
"""

import base64
import hashlib
import io
import threading
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from ouroboros.pipeline.store import files, hashes, tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.records import Picture as Record

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MOST_PIXELS = 89_478_485  # PIL's bound, beyond which it warns of a decompression bomb
MOST_TOGETHER, MOST_PIXELS_TOGETHER = 1024, 4 * MOST_PIXELS  # different images of a request, and their pixels
MOST_RATIO = 200  # which processors of several families refuse, too
GROUP_BYTES = 4 << 20  # of a row group, the unit of reading
DIGITS = 32  # of a hash
_READING = threading.Lock()

# of metadata that PIL reads in part, and of a decompression bomb, whose bound is ours; for the process, as images are
# decoded in threads, which share the filters of a context
warnings.filterwarnings("ignore", module=r"PIL\.")


class Picture(NamedTuple):
    """An image of a task or of an agent. file: the table that has it, or the directory of its file."""

    file: str
    hash: str


class Broken(DataError):
    """Bytes that are no image for a model; the message says why."""


class Lacking(DataError):
    """A table without the image."""


def named(found: Iterable[str] | None, directory: Path, shown: Path | None = None) -> tuple[Picture, ...]:
    """Images by their hashes, in a row of a task or of experience. directory: of the stage with its tasks. shown: the
    file of its step with those of agents, if there are any. Raises DataError where that is damaged."""
    file = str(Path(directory) / tables.LOCATIONS["pictures"])
    own = _album(str(shown))[1] if shown and shown.exists() else ()
    return tuple(Picture(str(shown) if one in own else file, one) for one in found or ())


def has_pictures(directory: Path | None) -> bool:
    """Whether tasks of a stage `curate` may have images. None: there are no tasks."""
    return directory is not None and (Path(directory) / tables.LOCATIONS["pictures"]).exists()


def link(source: Path, stage: Path, step: int | None = None) -> None:
    """Gives a stage the images of another one, of tasks or of agents in a step, if that has any."""
    if (theirs := _table(source, step)).exists():
        hashes.write(_table(stage, step), partial(files.link, theirs))


def _table(stage: Path, step: int | None, name: str = "shown") -> Path:
    return stage / tables.LOCATIONS["pictures"] if step is None else tables.step_file(stage, name, step)


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


def require_few(images: Collection[bytes]) -> None:
    """Raises Broken for more images, or more pixels by their headers, than are decoded for a request."""
    if len(images) > MOST_TOGETHER:
        raise Broken(f"the request has {len(images)} different images; needed at most {MOST_TOGETHER}")
    found = sum(one.width * one.height for one in map(partial(opened, whole=False), images))
    if found > MOST_PIXELS_TOGETHER:
        raise Broken(f"the request has images of {found:,} pixels together; needed at most {MOST_PIXELS_TOGETHER:,}")


def opened(data: bytes, whole: bool = True):
    """An image as PIL reads it; whole: decoded, else its header alone. Raises Broken for what is none, moves, has more
    than MOST_PIXELS, or is grey of more than 8 bits."""
    from PIL import Image, ImageFile, UnidentifiedImageError

    ImageFile.LOAD_TRUNCATED_IMAGES = False  # Data-Juicer sets it
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        if image.width * image.height > MOST_PIXELS:
            raise Broken(f"the image has {image.width} x {image.height} pixels; needed at most {MOST_PIXELS:,}")
        if max(image.size) >= MOST_RATIO * min(image.size):
            raise Broken(f"the image has {image.width} x {image.height} pixels; needed less than {MOST_RATIO} times as "
                         "many in a row as in a column, and the reverse")
        if image.format != "MPO" and getattr(image, "n_frames", 1) > 1:  # MPO: a phone's JPEG with a preview
            raise Broken(f"the image has {image.n_frames} frames; needed one that does not move")
        if image.mode[0] in "IF":  # I, I;16 and F, which PIL clips at 255
            raise Broken(f"the image has pixels of mode {image.mode}; needed at most 8 bits a channel")
        if whole:
            image.load()
            image.getexif()  # which says how it is turned
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


class Kept:
    """Takes images in, each once, and makes the table `pictures` of them, or that of a step. place: of its files."""

    def __init__(self, place: Path | None, refusal: str | None = None):
        """place: a directory for their files until then; None: images are looked at, and not stored. refusal: why none
        is taken."""
        self.place, self._refusal, self._records = place, refusal, {}
        self._lock = threading.Lock()  # a thread may keep one while another writes

    def keep(self, data: bytes) -> str:
        """Its hash. Raises Broken."""
        name = hashlib.sha256(data).hexdigest()[:DIGITS]
        with self._lock:
            if self._refusal:
                raise Broken(self._refusal)
            if name not in self._records:
                image = opened(data)
                if self.place:
                    self.place.mkdir(exist_ok=True)
                    (self.place / name).write_bytes(data)
                self._records[name] = Record(name, _format(image), image.width, image.height, b"")
        return name

    def write(self, stage: Path, step: int | None = None, names: Collection[str] = (), table: str = "shown") -> None:
        """Writes the table of a stage, or of a step (`table`) those of its rows; without images there is none. Takes no
        more."""
        with self._lock:
            self._refusal = "the step of this attempt is complete"
        if chosen := self._records if step is None else sorted(names):
            tables.write_groups(_table(stage, step, table), Record, self._groups(chosen))
        elif step is not None and (left := _table(stage, step, table)).exists():  # by a launch that was killed
            hashes.remove(left)
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


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """Raises DataError for a damaged table. It may have many GB, so only what is read of it is checked."""
    from pyarrow import ArrowException

    try:
        with _READING:  # two threads may not read one file of pyarrow's
            yield
    except FileNotFoundError:
        raise
    except (ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable table of images ({error}). {hashes.advice(Path(path))}") from error


@lru_cache(maxsize=64)
def _album(path: str) -> tuple[Any, dict[str, int]]:
    """A table of images, and the row group of each."""
    import pyarrow.parquet as pq

    with _readable(path):
        table = pq.ParquetFile(path)
        return table, {name: group for group in range(table.num_row_groups)
                       for name in table.read_row_group(group, ["hash"])["hash"].to_pylist()}


@lru_cache(maxsize=8)
def _group(path: str, group: int) -> dict[str, bytes]:
    table = _album(path)[0]
    with _readable(path):
        return dict(zip(*table.read_row_group(group, ["hash", "data"]).to_pydict().values(), strict=True))


def pixels(picture: Picture):
    """The image as models see it. Raises Lacking where the table of its tasks lacks it, DataError for a damaged one."""
    return decoded(_bytes(picture))


def data_uri(picture: Picture) -> str:
    """The image's file as a text. Raises as `pixels`."""
    data = _bytes(picture)
    return f"data:image/{_format(opened(data, whole=False))};base64,{base64.b64encode(data).decode()}"


def _format(image) -> str:
    return image.format.lower().replace("mpo", "jpeg")


def _bytes(picture: Picture) -> bytes:
    loose = Path(picture.file) / picture.hash
    try:
        if loose.exists():
            return loose.read_bytes()
        return _group(picture.file, _album(picture.file)[1][picture.hash])[picture.hash]
    except (FileNotFoundError, KeyError) as error:
        raise Lacking(f"{picture.file} has no image {picture.hash}: it was deleted, or is of other tasks. Delete the "
                      "stage's directory and run it again.") from error
