"""The images of prompts as pages show them: small ones that are part of the page."""

import base64
import io
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from ouroboros.pipeline.store.locations import step_file
from ouroboros.pipeline.store.pictures import Lacking, Picture, named, pixels
from ouroboros.pipeline.store.tables import SHOWN


def thumbnails(hashes: Sequence[str], stages: Sequence[Path], edge: int, step: int) -> list[dict[str, Any]]:
    """Returns `number` from 1, `src` (a data URI), `width` and `height` in pixels as models see it, and `hash` of each
    image that one of the stages has, for its tasks or in this step. edge: the most pixels of `src` in a row or a
    column."""
    made = []
    for number, name in enumerate(hashes, 1):
        for stage, table in product(stages, SHOWN):
            with suppress(Lacking):
                shown = named([name], stage, step_file(stage, table, step))
                made.append({"number": number, "hash": name, **_small(*shown, edge)})
                break
    return made


@lru_cache(1024)  # the attempts at a task have its images in common, and a large one takes a third of a second
def _small(picture: Picture, edge: int) -> dict[str, Any]:
    image = pixels(picture)
    width, height = image.size
    image.thumbnail((edge, edge))
    file = io.BytesIO()
    image.save(file, "WEBP", quality=80)
    return {"src": f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}", "width": width,
            "height": height}
