"""The garbage collector of a process that imports and opens torch, DeepSpeed or vLLM."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def opening() -> Iterator[None]:
    """Runs the block without the garbage collector, which then never scans what the block created.

    The libraries' hundred thousand objects live as long as the process: scanning them while they are imported is a
    tenth of the start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
