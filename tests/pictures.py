"""Image files of the tests."""

import io

import numpy as np
from PIL import Image


def png(width: int = 8, height: int = 8, seed: int = 0) -> bytes:
    """Random pixels as a PNG file."""
    return file(Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)))


def file(image: Image.Image, kind: str = "PNG", **how) -> bytes:
    made = io.BytesIO()
    image.save(made, kind, **how)
    return made.getvalue()
