"""The garbage collector of a process that imports and opens torch, DeepSpeed or vLLM."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def opening(young: int = 700) -> Iterator[None]:
    """Runs the block without the garbage collector, which then never scans what the block created.

    young: new objects after which it runs again; 700 is Python's.
    The libraries' hundred thousand objects live as long as the process: scanning them while they are imported is a
    tenth of the start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(young)
        gc.enable()
