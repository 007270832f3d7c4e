"""Generator `digits`: images of handwritten digits, to be read and added.

scikit-learn's 1,797 digits of 8 x 8 pixels, those of the UCI test set (Alpaydin and Kaynak, 1998) in the order of the
file. The last HELD of them are held out; the file does not say who wrote which, so a writer may be on both sides.
"""

import io
import json
import random
from collections.abc import Iterator

from ouroboros.pipeline.settings.arguments.rows import Digits
from ouroboros.pipeline.store.records import RawTask

HELD = 360
BRIGHT = 16  # the largest value of a pixel in the file
DIGITS = Digits.model_construct()
IMAGE, PLUS = {"type": "image"}, {"type": "text", "text": "+"}


def digits(seed: int, tasks: int, tests: int, demonstrated=DIGITS.demonstrated) -> Iterator[RawTask]:
    """Sums of two digits, drawn with repetition: train, test (of digits that are held out), and demonstrations; before
    them each digit of the training part is read once. `pictures` has the files of the images."""
    files, truths = _images()
    source, split = random.Random(f"digits {seed}"), len(files) - HELD

    def row(which: tuple[int, ...], of: str) -> RawTask:
        parts = [IMAGE] if len(which) == 1 else [IMAGE, PLUS, IMAGE]
        answer = str(sum(truths[one] for one in which))
        return RawTask(
            0, "<image>" if len(which) == 1 else "<image>+<image>", answer, answer if of == "sft" else None, split=of,
            messages=json.dumps({"messages": [{"role": "user", "content": parts}]}),
            pictures=[files[one] for one in which])

    def drawn(low: int, high: int) -> tuple[int, int]:
        return source.randrange(low, high), source.randrange(low, high)

    yield from (row((one,), "sft") for one in range(split))
    yield from (row(drawn(0, split), "sft") for _ in range(demonstrated))
    yield from (row(drawn(0, split), "train") for _ in range(tasks))
    yield from (row(drawn(split, len(files)), "test") for _ in range(tests))


def _images() -> tuple[list[bytes], list[int]]:
    """All digits as PNG files, and which they are."""
    from PIL import Image
    from sklearn.datasets import load_digits

    made, found = [], load_digits()
    for pixels in found.images:
        file = io.BytesIO()
        Image.fromarray((pixels * (255 / BRIGHT)).astype("uint8")).save(file, "PNG")
        made.append(file.getvalue())
    return made, found.target.tolist()
