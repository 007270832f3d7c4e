"""Where a record has images: in parts of its messages, or in a column whose images stand for marks in its texts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ouroboros.operators.turns import MARK, Turn, Unusable, is_empty
from ouroboros.pipeline.store.named_images import ENDINGS, is_image_name, read_image
from ouroboros.pipeline.store.pictures import Broken, of_text


def placed(turns: list[Turn], given: Any) -> list[Turn]:
    """The turns with the images of a column, one or a list, in place of the marks in texts of the user and of parts
    without a source; without any of these they come before the last turn. Raises Unusable where the numbers differ."""
    sources = given if isinstance(given, list | tuple) else [given]
    made = [{**turn, "content": _parts(turn["content"])} if turn["role"] == "user" else turn for turn in turns]
    slots = [part for turn in made if turn["role"] == "user"
             for part in turn["content"] if part.get("image", part) is None]
    if not slots and made[-1]["role"] == "user":
        slots = [{"type": "image", "image": None} for _ in sources]
        made[-1]["content"] = [*slots, *made[-1]["content"]]
    if len(slots) != len(sources):
        raise Unusable(f"{len(sources)} images, and {len(slots)} places for them ({MARK} in turns of the user); needed "
                       "as many")
    for slot, source in zip(slots, sources, strict=True):
        slot["image"] = source
    return [turn if turn["role"] != "user" or any("image" in part for part in turn["content"]) else before
            for turn, before in zip(made, turns, strict=True)]


def _parts(content: str | list[dict]) -> list[dict]:
    """A content as parts, a mark in a text as an image without a source."""
    if not isinstance(content, str):
        return [dict(part) for part in content]
    made: list[dict] = []
    for number, text in enumerate(content.split(MARK)):
        made += [{"type": "image", "image": None}] * bool(number) + [{"type": "text", "text": text}] * bool(text)
    return made


def taken(turns: list[Turn]) -> tuple[list[Turn], list[Any]]:
    """The turns with images as bare parts {type: image}, and the sources of these in order."""
    sources = [part["image"] for turn in turns if isinstance(turn["content"], list) for part in turn["content"]
               if part["type"] == "image"]
    if any(is_empty(source) for source in sources):
        raise Unusable("an image without a source; needed one in its part, or the key of a column (format.image_key)")
    bare = [turn if isinstance(turn["content"], str) else {**turn, "content": [
        {"type": "image"} if part["type"] == "image" else part for part in turn["content"]]} for turn in turns]
    return bare, sources


def stored(source: Any, keep: Callable[[bytes], str], directory: Path) -> str:
    """The hash of an image. source: bytes, a data URI, base64, the name of a file below the directory, or {bytes, path}
    as datasets writes images. Nothing is fetched. keep: stores a file. Raises Unusable."""
    if isinstance(source, dict):
        source = source.get("bytes") or source.get("path")
    try:
        return keep(source if isinstance(source, bytes) else _data(source, directory))
    except Broken as problem:
        raise Unusable(str(problem)) from problem


def _data(source: Any, directory: Path) -> bytes:
    if is_image_name(source):
        return read_image(source, directory)
    return of_text(str(source), f", base64, its bytes or the name of a file that ends in {', '.join(ENDINGS)}")
